"""The model of a server: its answers to opens, steps, forks and closes of one worker session.

Sequences have names. A sequence with state is held by the server, one without belongs to its stream.
"""

from contract import Reason, RowResult
from sequence import FAILURES, Held, Refused, Run
from sortition_verify.row import RowError


LOGPROBS = ("raw_logprobs", "processed_logprobs", "tempered_logprobs")


class Opened:
    """A sequence that a stream has opened."""

    def __init__(self, options, epoch):
        self.options, self.epoch, self.lost = options, epoch, False


class Server:
    """One stream to a server. Streams of a server share its state, all servers the key of checkpoints."""

    def __init__(self, checkpoints, held, peers):
        self.opened, self.held, self.peers = {}, held, peers
        peers.append(self)
        self.checkpoints = checkpoints  # bytes: their owner, the state, and its position and history hash

    # --- opens

    def open(self, name, epoch, options, history):
        """`history` is (tokens, prompt_length) or None. Returns the state: (position, hash, last step)."""
        if not options.stateful:
            if history is not None:
                raise Refused("CONTRADICTION", "open.history")
            self.opened[name] = Opened(options, epoch)
            return 0, None, 0
        held = self.held.get(name)
        if held is not None and (epoch < held.epoch or epoch == held.epoch and self is not held.owner):
            raise Refused("SUPERSEDED", "open.epoch", limit=str(held.epoch))
        if history is not None:
            held = self.held[name] = Held(epoch, *history)
        elif held is None:
            raise Refused("HISTORY_REQUIRED", "open.history", "open.request_id")
        held.epoch, held.owner = epoch, self
        for peer in self.peers:
            if peer is not self and name in peer.opened:
                peer.opened[name].lost = True
        self.opened[name] = Opened(options, epoch)
        return len(held.tokens), options.hash_of(held.tokens, held.prompt), held.last_step

    def fork(self, parent, name, epoch, options, position):
        """As open."""
        if parent not in self.opened:
            raise Refused("UNKNOWN_SEQUENCE", "fork.parent_request_id")
        if not options.stateful:
            self.opened[name] = Opened(options, epoch)
            return 0, None, 0
        held = self.held.get(parent)
        if not self.opened[parent].options.stateful or held is None:
            raise Refused("HISTORY_REQUIRED", "fork.parent_request_id", "fork.position")
        position = len(held.tokens) if position is None else position
        if position > len(held.tokens):
            raise Refused("HISTORY_REQUIRED", "fork.position")
        return self.open(name, epoch, options, (held.tokens[:position], min(held.prompt, position)))

    def close(self, name, epoch):
        """Closes a sequence; True if something was known."""
        opened, held = self.opened.get(name), self.held.get(name)
        if opened is None and epoch is None:
            raise Refused("MISSING_FIELD", "close.epoch")
        if opened is not None and not opened.options.stateful:
            del self.opened[name]
            return True
        epoch = opened.epoch if epoch is None else epoch
        if opened is not None and opened.epoch <= epoch:
            del self.opened[name]
        if held is not None and held.epoch > epoch:
            raise Refused("SUPERSEDED", "close.epoch", limit=str(held.epoch))
        return self.held.pop(name, None) is not None

    # --- steps

    def check(self, name, ask):
        """Finds the sequence of a row, and contradictions of the row's task."""
        opened = self.opened.get(name)
        if opened is None:
            raise Refused("UNKNOWN_SEQUENCE", "request_id")
        self.check_task(opened.options, ask)
        return opened

    def step(self, name, ask):
        """The result of a row; raises Refused. Nothing has changed then."""
        opened = self.check(name, ask)
        options = opened.options
        if not options.stateful:
            for field in ("history_hash", "truncate_to", "append_tokens"):
                if ask.get(field) not in (None, []):
                    raise Refused("CONTRADICTION", field)
            ask["state"] = self.state_of(name, options, ask, None)
            run = Run(options, ask, [], 0)
            self.attempt(run)
            return run
        return self.step_held(name, opened, ask)

    def step_held(self, name, opened, ask):
        options, held = opened.options, self.held.get(name)
        if ask["history_hash"] is None:
            raise Refused("MISSING_FIELD", "history_hash")
        if opened.lost:
            raise Refused("SUPERSEDED")
        if held is None:
            raise Refused("HISTORY_REQUIRED", "request_id")
        if held.last_step and ask["step_id"] == held.last_step:
            if key_of(ask) != held.last_key:
                raise Refused("STEP_CONFLICT", "step_id")
            return held.last_run
        if ask["step_id"] < held.last_step:
            raise Refused("STALE_STEP", "step_id")
        tokens, prompt = held.tokens, held.prompt
        cut = ask["truncate_to"]
        if cut is not None:
            if cut > len(tokens):
                raise Refused("HISTORY_REQUIRED", "truncate_to")
            tokens, prompt = tokens[:cut], min(prompt, cut)
        tokens = tokens + ask["append_tokens"]
        if ask["position"] != len(tokens):
            raise Refused("HISTORY_REQUIRED", "position")
        if ask["history_hash"] != options.hash_of(tokens, prompt):
            raise Refused("HISTORY_REQUIRED", "history_hash")
        ask["state"] = self.state_of(name, options, ask, held)
        run = Run(options, ask, tokens, prompt)
        self.attempt(run)
        if run.appended:  # a score leaves the sequence as it is
            held.last_step, held.last_key, held.last_run = ask["step_id"], key_of(ask), run
            held.tokens, held.prompt = tokens + run.appended, prompt
        return run

    def check_task(self, options, ask):
        """Contradictions of a task with the sequence's options."""
        p, task = options.p, ask["task"]
        if not options.keeps_state and ask["checkpoint"]:
            raise Refused("CONTRADICTION", "checkpoint")
        if task == "score" and ask["race"] and "adaptive_p" in p:
            raise Refused("CONTRADICTION", "score.race")
        if task == "score" and ask["requested"] and not any(kind in p for kind in LOGPROBS):
            raise Refused("CONTRADICTION", "score.requested")
        if task not in ("verify", "tree"):
            self.check_sum(options, ask)
            return
        field = "verify_draft" if task == "verify" else "verify_tree"
        greedy = [rules.compiled.greedy for rules in options.rules]
        wrong = ask["mode"] == "GREEDY" and not all(greedy)
        wrong |= ask["mode"] == "BLOCK" and (any(greedy) or options.keeps_state or task == "tree")
        wrong |= ask["mode"] in ("GREEDY", "COUPLED") and bool(ask["drafted"])
        by_chance = ask["mode"] == "BLOCK" or ask["mode"] == "REJECTION" and (task == "verify" or bool(ask["drafted"]))
        wrong |= options.mark_id is not None and bool(by_chance)
        if wrong or ask["both_masks"]:
            names = ("mode", "draft_row", "sparse_probabilities", "draft_sampling", "masks")
            raise Refused("CONTRADICTION", *(f"{field}.{name}" for name in names))
        if ask["mode"] == "BLOCK" and not ask["drafted"]:
            raise Refused("MISSING_FIELD", f"{field}.draft_row", f"{field}.mode")
        self.check_sum(options, ask)

    @staticmethod
    def check_sum(options, ask):
        if ask["states_sum"] and options.one_temperature is None:
            raise Refused("CONTRADICTION", "compact.sum")

    def state_of(self, name, options, ask, held):
        """The samplers' state that a step's checkpoint stands for; None: they start anew."""
        given = ask["checkpoint"]
        if not given:
            return None
        whose, state, place = self.checkpoints[given]
        rewrites = ask["truncate_to"] is not None or ask["append_tokens"]
        goes_on = held is not None and ask["step_id"] == held.last_step + 1 and held.last_step and not rewrites
        if whose != name or goes_on and place != (ask["position"], ask["history_hash"]):
            raise Refused("CHECKPOINT_REFUSED", "checkpoint")
        return state

    @staticmethod
    def attempt(run):
        try:
            run.run()
        except RowError as error:
            raise Refused(FAILURES[error.kind], getattr(error, "field", "step.rows")) from error

    def remember(self, name, run, given):
        """The checkpoint that came with a result."""
        if given:
            answered = run.appended or run.ask["tokens"]
            hash_word = run.options.hash_of(run.tokens + answered, run.prompt) if run.options.stateful else None
            self.checkpoints[given] = name, run.state, (run.ask["position"] + len(answered), hash_word)


def key_of(ask):
    """The options that a retry is compared by."""
    masks = None if ask["masks"] is None else [None if mask is None or mask.all() else mask.tobytes()
                                               for mask in ask["masks"]]
    others = ("masks", "both_masks", "empty", "bans", "drafted", "replaced", "bits", "compact", "states_sum", "state",
              "plan", "numbers", "spoilt")
    return {name: value for name, value in ask.items() if name not in others}, masks


__all__ = ["Reason", "RowResult", "Server"]
