"""Makes a world smaller that shows a difference: fewer sequences, events, rows and options, the same difference."""

import copy
import itertools

from play import Difference
from calls import Caller
from worlds import PLAIN_ROW

SESSIONS = itertools.count()
SIMPLE_STEP = {"stride": False, "priority": None, "timeout": False, "early": False, "tensor_rows": False,
               "dtype": "f32", "draft_dtype": "f32"}


def difference_of(channels, world, plants, log=None):
    """The difference that a world shows, or None."""
    player = Caller(channels, copy.deepcopy(world), f"shrink-{next(SESSIONS)}", plants, log=log)
    try:
        player.run()
    except Difference as difference:
        return difference
    finally:
        player.close()
    return None


class Shrinker:
    def __init__(self, channels, world, difference, plants, tries=400):
        self.channels, self.world, self.plants, self.tries = channels, world, plants, tries
        self.kind = difference.what.rpartition(",")[2]

    def still(self, world):
        if self.tries <= 0:
            return False
        self.tries -= 1
        try:
            found = difference_of(self.channels, world, self.plants)
        except (KeyError, IndexError, ValueError, AttributeError):
            return False  # no world of this kind
        if found is None or found.what.rpartition(",")[2] != self.kind:
            return False
        self.world = world
        return True

    def run(self):
        self.events()
        self.rows()
        for number in range(len(self.world["sequences"])):
            self.parameters(number)
        self.simplify()
        self.events()
        return self.world

    def events(self):
        size = max(1, len(self.world["events"]) // 2)
        while size:
            at = 0
            while at < len(self.world["events"]):
                events = self.world["events"]
                if not self.still({**self.world, "events": events[:at] + events[at + size:]}):
                    at += size
            size //= 2

    def with_event(self, at, event):
        events = list(self.world["events"])
        events[at] = ("step", event)
        return {**self.world, "events": events}

    def steps(self):
        return [at for at, event in enumerate(self.world["events"]) if event[0] == "step"]

    def rows(self):
        for at in self.steps():
            number = 0
            while number < len(self.world["events"][at][1]["rows"]) > 1:
                event = self.world["events"][at][1]
                rows = event["rows"][:number] + event["rows"][number + 1:]
                if not rows or not self.still(self.with_event(at, {**event, "rows": rows})):
                    number += 1

    def parameters(self, number):
        paths = [()]
        while paths:
            path = paths.pop()
            for name in list(self.part(self.world, number, path)):
                world = copy.deepcopy(self.world)
                value = self.part(world, number, path).pop(name)
                if not self.still(world) and isinstance(value, dict):
                    paths.append((*path, name))
        if not self.world["sequences"][number]["prompt"]:
            return
        world = copy.deepcopy(self.world)
        world["sequences"][number]["prompt"] = []
        self.still(world)

    @staticmethod
    def part(world, number, path):
        value = world["sequences"][number]["parameters"]
        for name in path:
            value = value[name]
        return value

    def simplify(self):
        for at in self.steps():
            for name, value in SIMPLE_STEP.items():
                event = self.world["events"][at][1]
                if event[name] != value:
                    self.still(self.with_event(at, {**event, name: value}))
            for number in range(len(self.world["events"][at][1]["rows"])):
                for name, value in PLAIN_ROW.items():
                    event = copy.deepcopy(self.world["events"][at][1])
                    if event["rows"][number][name] != value:
                        event["rows"][number][name] = value
                        self.still(self.with_event(at, event))
