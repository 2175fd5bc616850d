"""Plays the events of a world: sends each to a server and to the model, and compares the answers."""

from google.protobuf import json_format, text_format

import policies
from contract import INDEX, History, OpenSequence, Policy, PolicyEffect, Reason, StreamRequest, numbers_of
from refusals import refusals
from sequence import Options, Refused
from server import Server
from spoils import spoil_open
from wire import Stream

LAW_VERSION = 1


class Difference(Exception):
    """A server has answered otherwise than the model says."""

    def __init__(self, name, what, said, model):
        super().__init__(name, what)
        self.name, self.what, self.said, self.model = name, what, said, model

    def __str__(self):
        return f"sequence {self.name}: {self.what}\n--- the model says\n{self.model}\n--- the server said\n{self.said}"


class Text:
    """A sequence as its worker sees it."""

    def __init__(self, plan, name):
        self.plan, self.name = plan, name
        self.server, self.epoch, self.step_id = 0, 0, 0
        self.tokens, self.prompt = list(plan["prompt"]), len(plan["prompt"])
        self.open, self.options, self.effect, self.numbers = None, None, None, set()
        self.checkpoint, self.older, self.last = b"", b"", None
        self.rewind, self.bans, self.rewinds = None, {}, 0


class Player:
    def __init__(self, channels, world, session, plants=(), pairs=None, log=None):
        self.policy = world["policy"]
        self.policy_numbers = set()
        if self.policy is not None:
            self.policy_numbers = numbers_of(json_format.ParseDict(self.policy, Policy()), "policy")
        self.channels, self.world, self.plants, self.pairs, self.log = channels, world, plants, pairs, log
        # Streams 0 and 2 lead to the first server, stream 1 to the second one.
        self.streams = [Stream(channel, session, world["tenant"]) for channel in (*channels, channels[0])]
        checkpoints, held, peers = {}, ({}, {}), ([], [])
        self.models = [Server(checkpoints, held[number], peers[number]) for number in (0, 1, 0)]
        self.texts, self.batch, self.masks, self.steps, self.required = {}, 0, 0, 0, 0
        self.refused = {}

    def close(self):
        for stream in self.streams:
            stream.close()

    def run(self):
        for kind, *rest in self.world["events"]:
            getattr(self, kind)(*rest)

    def ask(self, server, request):
        self.note(server, request)
        self.streams[server].send(request)
        return self.receive(server)

    def receive(self, server):
        answer = self.streams[server].receive()
        self.note(server, answer)
        return answer

    def note(self, server, message):
        if self.log is not None:
            self.log.append(f"# server {server}: {type(message).__name__}\n{text_format.MessageToString(message)}")

    def text(self, number):
        if number not in self.texts:
            plan = self.world["sequences"][number]
            self.texts[number] = Text(plan, f"s{number}")
        return self.texts[number]

    # --- opens

    def open_message(self, text):
        plan = text.plan
        opened = OpenSequence(request_id=text.name, epoch=text.epoch, law_version=LAW_VERSION,
                              vocabulary_size=self.world["vocabulary"], **plan["open"])
        if self.world["live"] != self.world["vocabulary"] or plan["states_live"]:
            opened.live_vocabulary_size = self.world["live"]
        json_format.ParseDict(plan["parameters"], opened.parameters)
        return opened

    def options_of(self, text):
        """The options in force, or the refusals; a server gives one of them."""
        plan, p, mark_id = text.plan, text.plan["parameters"], None
        if self.policy is not None:
            text.effect = policies.apply(self.policy, p, plan["open"].get("watermark_key_id", ""),
                                         self.world["live"])
            if text.effect.refusals:
                # A server names one of several mistakes.
                return None, [*text.effect.refusals, *refusals(p, self.world["live"]),
                              *refusals(text.effect.p, self.world["live"])]
            p, mark_id = text.effect.p, text.effect.mark_id
        elif plan["open"].get("watermark_key_id"):
            return None, [Refused("CONTRADICTION", "open.watermark_key_id")]
        found = refusals(p, self.world["live"])
        if found:
            return None, found
        words = dict(law_version=LAW_VERSION, vocabulary_size=self.world["vocabulary"], live=self.world["live"],
                     seed=text.open.seed if text.open else plan["open"].get("seed", 0),
                     choice_index=plan["open"].get("choice_index", 0))
        return Options(words, p, mark_id, self.plants), []

    def prepare(self, text):
        """Sets the options of a text that is about to be opened; returns the refusals."""
        if text.options is None:
            text.options, found = self.options_of(text)
            text.open = self.open_message(text)
            if text.plan["spoil"]:
                found = [spoil_open(text.plan["spoil"], text.open), *found]
                text.options = None
            text.numbers = numbers_of(text.open, "open") | self.policy_numbers
            return found
        return []

    def open(self, number, server, pieces=1, history=True):
        text = self.text(number)
        found = self.prepare(text)
        text.server = server
        text.epoch += 1
        sent = OpenSequence()
        sent.CopyFrom(text.open)
        sent.epoch = text.epoch
        stateful = text.options is not None and text.options.stateful
        known = (list(text.tokens), text.prompt) if history and stateful else None
        messages = split(sent, known, pieces)
        for request in messages[:-1]:
            self.note(server, request)
            self.streams[server].send(request)
        got = self.ask(server, messages[-1]).opened
        self.learn_seed(text, got)
        expected = found
        if not found:
            try:
                expected = self.models[server].open(text.name, sent.epoch, text.options, known)
            except Refused as refused:
                expected = [refused]
        text.numbers |= {n for m in messages for n in numbers_of(m.open, "open")}
        self.compare_opened(text, got, expected)
        return got

    def learn_seed(self, text, got):
        """Takes the seed that the server has drawn for an open without one."""
        if text.open.HasField("seed") or got.WhichOneof("kind") != "state":
            return
        text.open.seed = got.state.seed
        if text.options is not None:
            text.options, _ = self.options_of(text)

    def compare_opened(self, text, got, expected):
        if isinstance(expected, list):
            self.compare_refusal(text, got.error if got.WhichOneof("kind") == "error" else None, expected, got)
            self.count(text, set(), expected[0].reason)
            if text.options is None:
                text.plan["dead"] = True
                self.try_second(text)
            return
        if got.WhichOneof("kind") != "state":
            raise Difference(text.name, "the sequence is open", got, expected)
        state = got.state
        position, hash_word, last = expected
        options = text.options
        said = (state.seed, state.stateful, state.position, state.history_hash if state.HasField("history_hash")
                else None, state.last_step_id)
        model = (options.opened["seed"], options.stateful, position, hash_word, last)
        if said != model:
            raise Difference(text.name, "seed, stateful, position, history hash, last step of an open", said, model)
        wanted = PolicyEffect()
        if text.effect is not None:
            json_format.ParseDict(text.effect.applied, wanted.applied)
            wanted.removed.extend(text.effect.removed)
            wanted.watermark_key_id = text.effect.mark_id or ""
            if options.stateful:
                wanted.history_digest = options.digest
        if state.policy != wanted:
            raise Difference(text.name, "the effect of a policy", state.policy, wanted)

    def try_second(self, text):
        """A worker whose open was refused opens the sequence with other parameters."""
        second = text.plan.get("second")
        if second is not None:
            text.plan = {**text.plan, "parameters": second, "second": None, "spoil": None, "dead": False}
            self.open(int(text.name[1:]), text.server)

    def compare_refusal(self, text, error, expected, whole):
        model = [(refused.reason, refused.fields) for refused in expected]
        if error is None:
            raise Difference(text.name, "a refusal, none", whole, model)
        reason, field = Reason.Name(error.reason), plain(error.field)
        for refused in expected:
            fields = [plain(f) for f in refused.fields]
            if reason == refused.reason and (not fields or any(field.endswith(f) for f in fields)):
                if refused.limit is None or error.limit.split(" ")[-1] == refused.limit:
                    key = reason, field
                    self.refused[key] = self.refused.get(key, 0) + 1
                    return
        raise Difference(text.name, f"a refusal, {reason} {field}", error, model)

    def alive(self, number):
        """The text of a number if a worker has opened it, or None."""
        text = self.text(number)
        return None if text.options is None or text.plan.get("dead") else text

    def move(self, number, server, pieces, silent):
        """The worker goes to a stream: with its history, or without, and says it where it is not there."""
        text = self.alive(number)
        if text is None:
            return
        self.open(number, server, pieces, history=not silent)
        held = self.models[server].held.get(text.name)
        if silent and text.options.stateful and (held is None or held.tokens != text.tokens):
            self.open(number, server, pieces)

    def old(self, number):
        """A former self of the worker comes late: with an epoch that is not the highest, on another stream."""
        text = self.alive(number)
        held = None if text is None else self.models[text.server].held.get(text.name)
        if held is None or text.server == 1:
            return
        sent = StreamRequest()
        sent.open.CopyFrom(text.open)
        sent.open.epoch = held.epoch
        other = 2 - text.server
        got = self.ask(other, sent).opened
        try:
            self.compare_opened(text, got, self.models[other].open(text.name, held.epoch, text.options, None))
        except Refused as refused:
            self.compare_opened(text, got, [refused])

    def cancel(self, number):
        """Cancels a batch that was answered, which changes nothing and is not answered."""
        text = self.alive(number)
        if text is None:
            return
        request = StreamRequest()
        request.cancel.batch_id = self.batch
        self.note(text.server, request)
        self.streams[text.server].send(request)
        self.count(text, {INDEX["cancel"]})

    def fork(self, parent, child, server_position, with_history=False):
        text, other = self.alive(parent), self.text(child)
        if text is None or other.options is not None:
            return
        found = self.prepare(other)
        other.server, other.epoch = text.server, other.epoch + 1
        request = StreamRequest()
        request.fork.parent_request_id = text.name
        request.fork.child.CopyFrom(other.open)
        request.fork.child.epoch = other.epoch
        model = self.models[text.server]
        held = model.held.get(text.name)
        position = None
        if server_position is not None:
            position = int(server_position * len(held.tokens)) if held is not None else 0
            request.fork.position = position
        if with_history:
            request.fork.child.history.CopyFrom(History(tokens=[0], prompt_length=1, offset=1, continues=True))
            found = [Refused("CONTRADICTION", "open.history"), *found]
        got = self.ask(text.server, request).forked
        self.learn_seed(other, got)
        try:
            expected = found or model.fork(text.name, other.name, other.epoch, other.options, position)
        except Refused as refused:
            expected = [refused]
        self.compare_opened(other, got, expected)
        kinds = numbers_of(request.fork, "fork") | numbers_of(request.fork.child, "open") | {INDEX["fork"]}
        self.count(other, kinds, expected[0].reason if isinstance(expected, list) else None)
        if isinstance(expected, list):
            if other.name not in model.opened:
                other.plan["dead"] = True
        elif other.options.stateful:
            state = model.held[other.name]
            other.tokens, other.prompt = list(state.tokens), state.prompt
        else:
            other.tokens, other.prompt = list(text.tokens), text.prompt

    def end(self, number, named):
        """Closes a sequence; the worker may open it again."""
        text = self.alive(number)
        if text is None:
            return
        request = StreamRequest()
        request.close.request_id = text.name
        if named is not None:
            request.close.epoch = text.epoch - named
        got = self.ask(text.server, request).closed
        try:
            known = self.models[text.server].close(text.name, None if named is None else text.epoch - named)
        except Refused as refused:
            self.compare_refusal(text, got.error if got.HasField("error") else None, [refused], got)
            return
        if got.HasField("error") or got.was_known != known:
            raise Difference(text.name, "a close", got, f"was_known: {known}")
        self.count(text, numbers_of(request.close, "close") | {INDEX["close"]})

    # --- counts

    def count(self, text, numbers, refusal=None):
        if self.pairs is not None:
            self.pairs.count(text.numbers | numbers, refusal)


def plain(field):
    """A path without indexes, in which a fork's child is an open."""
    field = field.replace("fork.child.", "open.")
    return "".join(part.partition("]")[2] if "]" in part else part for part in field.split("["))


def split(sent, history, pieces):
    """An open as messages, with its history in pieces."""
    request = StreamRequest()
    request.open.CopyFrom(sent)
    if history is None:
        return [request]
    tokens, prompt = history
    pieces = max(1, min(pieces, len(tokens)))
    bounds = [len(tokens) * i // pieces for i in range(pieces + 1)]
    messages = []
    for i in range(pieces):
        part = StreamRequest()
        part.open.CopyFrom(sent)
        part.open.history.tokens.extend(tokens[bounds[i]:bounds[i + 1]])
        part.open.history.prompt_length = prompt
        part.open.history.offset = bounds[i]
        part.open.history.continues = i + 1 < pieces
        part.open.history.SetInParent()
        messages.append(part)
    return messages


__all__ = ["Difference", "Player", "Text"]
