"""The model of a sequence: what a server that follows the pages answers to its open and to each of its steps.

It keeps everything that ever was: whole histories, and every checkpoint with the state that it stands for.
"""

import drafts
import texts
from contract import RowResult
from place import Place, Rules, Situation
from sortition_verify.chain import DYNAMIC_TEMPERATURE, TEMPERATURE, signed
from sortition_verify.functions import UNIT_TEMPERATURE
from sortition_verify.row import RowError

STATE_OPTIONS = ("no_repeat_ngram_size", "min_tokens", "phases", "watermark", "banned_phrases")
FAILURES = {"nan": "LOGIT_NAN", "logit_too_large": "LOGIT_TOO_LARGE", "no_live_token": "NO_LIVE_TOKEN",
            "draft_sum": "OUT_OF_RANGE"}


class Refused(Exception):
    """A refusal: the reason's name, and the fields; one of them is named."""

    def __init__(self, reason, *fields, limit=None):
        super().__init__(reason, fields)
        self.reason, self.fields, self.limit = reason, fields, limit


def looks_at_history(p):
    return (texts.penalised_anywhere(p) or bool(p.get("dry", {}).get("multiplier"))
            or any(p.get(name) for name in STATE_OPTIONS[:3]) or "watermark" in p or bool(p.get("banned_phrases"))
            or any(len(word["tokens"]) > 1 for word in p.get("bad_words", []))
            or texts.repetition_stop(p) is not None)


class Options:
    """The words of an open, the parameters in force, and the rules of each phase."""

    def __init__(self, opened, p, mark_id=None, plants=()):
        self.opened, self.p, self.mark_id, self.plants = opened, p, mark_id, plants
        self.stateful = looks_at_history(p)
        self.digest = texts.digest(opened, p, mark_id)
        self.rules = [Rules(p, phase, opened["live"], plants) for phase in range(len(p.get("phases", [])) + 1)]
        self.keeps_state = any(rules.keeps_state for rules in self.rules)
        self.one_temperature = self.temperature()

    def temperature(self):
        """The scale of the only temperature that rows have; None where there are several, or one that is not fixed."""
        scales = set()
        for rules in self.rules:
            found = UNIT_TEMPERATURE  # also of greedy rows
            for number, *operands in [] if rules.compiled.greedy else rules.compiled.stages():
                if number == DYNAMIC_TEMPERATURE:
                    return None
                if number == TEMPERATURE:
                    multiplier, exponent, window = operands[:3]
                    found = multiplier, signed(exponent, 32) if exponent >= 0 else exponent, window
            scales.add(found)
        return scales.pop() if len(scales) == 1 else None

    def stream(self, salt):
        return self.opened["choice_index"] | salt << 16

    def situation(self, tokens, prompt, position, salt, mask, state):
        slip = 1 if "budget" in self.plants else 0
        phase, forced = texts.phase_at(self.p, tokens, prompt, slip)
        if not self.stateful:
            tokens = Padding(position)
        stream = self.stream(salt)
        return phase, Situation(self.rules[phase], tokens, prompt, forced, self.opened["seed"], stream, mask, state)

    def hash_of(self, tokens, prompt):
        return texts.history_hash(texts.token_hash(tokens), prompt, self.digest)


class Padding(list):
    """A history that nothing looks at. Only its length is known."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def __len__(self):
        return self.length


class Held:
    """The state that a server keeps of a sequence."""

    def __init__(self, epoch, tokens, prompt):
        self.epoch, self.tokens, self.prompt = epoch, list(tokens), prompt
        self.owner = None  # the stream that has opened it last
        self.last_step, self.last_key, self.last_run = 0, None, None


class Run:
    """One step of a sequence over its positions. `bits` has the f32 bits of each tensor row that the step takes."""

    def __init__(self, options, ask, tokens, prompt):
        self.options, self.ask, self.tokens, self.prompt = options, ask, tokens, prompt
        self.result = RowResult(step_id=ask["step_id"])
        self.appended, self.state = [], None

    def situation(self, drafted, index, state):
        tokens = self.tokens + drafted
        masks = self.ask["masks"]
        mask = masks[index] if masks is not None else None
        return self.options.situation(tokens, self.prompt, self.ask["position"] + len(drafted), self.ask["salt"], mask,
                                      state)

    def place(self, drafted, index, state):
        phase, situation = self.situation(drafted, index, state)
        try:
            return phase, Place(situation, self.ask["bits"][index])
        except RowError as error:
            error.field = "step.rows"
            if error.kind == "no_live_token":
                # Where a token is forced, no mask has a part.
                masks = {} if situation.forced is not None else self.ask["empty"]
                error.field = masks.get(index, "step.rows")
            raise

    def run(self):
        """Raises RowError, with the index of the position, if the row fails."""
        getattr(self, self.ask["task"])()
        return self.result

    def draw(self):
        state = self.ask["state"]
        phase, place = self.place([], 0, state)
        token = place.draw()
        out = self.result.draw
        place.fill(out, token)
        out.token, out.phase = token, phase
        self.appended, self.state = [token], place.state_after(token)
        self.finish(out)

    def finish(self, out):
        """The end of an answer that appends tokens."""
        tokens = self.tokens + self.appended
        if self.options.stateful:
            out.history_hash = self.options.hash_of(tokens, self.prompt)
        reason, rewind = texts.end_of(self.options.p, [*self.known_output(), *self.appended], self.known_prompt())
        out.finish_reason = reason
        if rewind is not None:
            out.rewind.position = rewind[0]
            out.rewind.tokens.extend(rewind[1])

    def known_output(self):
        return self.tokens if self.options.stateful else []

    def known_prompt(self):
        return self.prompt if self.options.stateful else 0

    def ends(self, drafted):
        """True if no token follows these drafts."""
        tokens = [*self.known_output(), *drafted]
        return texts.end_of(self.options.p, tokens, self.known_prompt()) != (0, None)

    def score(self):
        state = self.ask["state"]
        given = self.ask["tokens"]
        for index, token in enumerate(given):
            phase, place = self.place(given[:index], index, state)
            out = self.result.score.positions.add(index=index, token=token, phase=phase)
            place.fill(out, token, self.ask["requested"][index] if self.ask["requested"] else None)
            if self.ask["race"]:
                place.fill_race(out, token)
            if place.rules.keeps_state:
                state = place.state_after(token)
        self.state = state
        self.result.score.SetInParent()

    # --- drafts in a row

    def add_position(self, place, phase, token):
        positions = self.result.verify.positions
        out = positions.add(index=len(positions), token=token, phase=phase)
        place.fill(out, token)
        if self.ask["return_probabilities"]:
            out.probabilities = place.probabilities()

    def judge(self, place, draft, index):
        """Judges a draft: (it passes, the token that stands there)."""
        if self.ask["mode"] == "REJECTION":
            drafter = self.ask["drafted"]
            return place.accepts(draft, drafter[index].checked().as_law() if drafter else None)
        token = place.draw()
        return token == draft, token

    def verify(self):
        out = self.result.verify
        given, state = self.ask["tokens"], self.ask["state"]
        if self.ask["mode"] == "BLOCK":
            return self.verify_block()
        accepted, going = 0, True
        for index, draft in enumerate(given):
            if not going and self.options.keeps_state:
                out.position_matched.append(False)
                continue
            try:
                phase, place = self.place(given[:index], index, state)
                passed, token = self.judge(place, draft, index)
            except RowError:
                if going:
                    raise
                passed = False
            out.position_matched.append(passed)
            if going:
                self.add_position(place, phase, draft if passed else token)
                self.appended.append(draft if passed else token)
                if place.rules.keeps_state:
                    state = place.state_after(self.appended[-1])
                accepted += passed
                going = passed and not self.ends(given[:index + 1])
        if going:
            phase, place = self.place(given, len(given), state)
            token = place.draw()
            self.add_position(place, phase, token)
            self.appended.append(token)
            if place.rules.keeps_state:
                state = place.state_after(token)
        self.close(accepted, state)

    def close(self, accepted, state):
        out = self.result.verify
        out.accepted, self.state = accepted, state
        out.matched = sum(out.position_matched)
        self.finish(out)

    def verify_block(self):
        given = self.ask["tokens"]
        made = {}

        def place_of(index):
            if index not in made:
                made[index] = self.place(given[:index], index, None)
            return made[index][1]

        accepted, token = drafts.block(place_of, given, self.ask["drafted"])
        if token is None:
            token = place_of(len(given)).draw()
        passed = accepted
        # A draft that ends the text withholds the tokens behind it. The block has accepted them all the same.
        for count in range(1, accepted + 1):
            if self.ends(given[:count]):
                accepted, token = count, None
                break
        self.appended = given[:accepted] + ([] if token is None else [token])
        for index, answer in enumerate(self.appended):
            place_of(index)
            phase, place = made[index]
            self.add_position(place, phase, answer)
        self.result.verify.position_matched.extend(index < passed for index in range(len(given)))
        self.close(accepted, None)

    # --- drafts in a tree

    def tree(self):
        given, parents, out = self.ask["tokens"], self.ask["parents"], self.result.verify
        children = {node: [i for i, parent in enumerate(parents) if parent == node] for node in range(-1, len(given))}
        matched = [False] * len(given)
        paths = {-1: []}
        for node, parent in enumerate(parents):
            paths[node] = paths[parent] + [node]
        node, state, going, states = -1, self.ask["state"], True, {}
        picked = {}
        # The path from the root first: its positions carry the state. The others are judged by themselves.
        while going:
            phase, place = self.place([given[i] for i in paths[node]], node + 1, state)
            taken, token = self.choose(place, children[node], node)
            picked[node] = taken
            self.add_position(place, phase, token)
            self.appended.append(token)
            if place.rules.keeps_state:
                state = place.state_after(token)
            if taken is None:
                break
            matched[taken] = True
            out.path.append(taken)
            node = taken
            going = not self.ends(self.appended)
        if not self.options.keeps_state:
            for other in range(-1, len(given)):
                if other in picked or not children[other]:
                    continue
                try:
                    _, place = self.place([given[i] for i in paths[other]], other + 1, None)
                except RowError:
                    continue
                taken, _ = self.choose(place, children[other], other)
                if taken is not None:
                    matched[taken] = True
        out.position_matched.extend(matched)
        self.close(len(out.path), state)

    def choose(self, place, children, node):
        """The accepted one of a node's drafts or None, and the token that stands there."""
        tokens = [self.ask["tokens"][i] for i in children]
        if self.ask["drafted"] and children:
            taken, token = drafts.rounds(place, tokens, self.ask["drafted"][node], self.ask["replaced"])
            return (None if taken is None else children[taken]), token
        token = place.draw()
        return (children[tokens.index(token)] if token in tokens else None), token
