"""Random worlds: a few sequences of one vocabulary, and the events of their workers. A world is plain data."""

import random

import rows as made
import spoils
from parameters import Taste, make_parameters

TASKS = ("draw", "draw", "draw", "draw", "score", "verify", "verify", "tree")
TASK_FIELDS = (("score", ".score"), ("verify", ".verify_draft"), ("tree", ".verify_tree"), ("draw", ".draw"))
MODES = ("REJECTION", "COUPLED", "GREEDY", "BLOCK")
# A row with nothing that a difference could do without.
PLAIN_ROW = {"mask": None, "masks": None, "compact": None, "salt": None, "tensor_row": False, "cut": None,
             "append": [], "probabilities": False, "requested": None, "race": False, "jump": 0, "skip": 1,
             "fault": None, "style": "normal", "checkpoint": "right", "says_draw": False}


class Maker:
    """Makes the world of a seed. `wanted` are options that its sequences and steps shall have."""

    def __init__(self, seed, tenants, wanted, sequences, steps):
        self.random = random.Random(seed)
        r = self.random
        self.vocabulary = r.choice([2, 3, 4, 5, 8, 12, 16, 24, 32, 33, 64, 65, r.randrange(2, 65), 128, 300])
        self.live = self.vocabulary if r.random() < 0.7 else r.randint(1, self.vocabulary)
        self.wanted, self.count, self.steps = list(wanted), sequences, steps
        tenant = self.tenant(tenants)
        self.world = {"seed": seed, "tenant": tenant, "policy": tenants[tenant],
                      "vocabulary": self.vocabulary, "live": self.live, "sequences": [], "events": []}
        self.events = self.world["events"]

    def tenant(self, tenants):
        """Half of the time one without a policy, else the one with a policy that has most of the wanted options."""
        r = self.random
        names = {name for pair in self.wanted for name in pair if name.startswith("policy.")}
        if any("watermark_key_id" in pair for pair in self.wanted):
            names.add("policy.watermark")
        if not names:
            return r.choice(sorted(tenants)) if r.random() < 0.5 else "free"
        return max(sorted(tenants), key=lambda name: (len(names & policy_options(tenants[name])), r.random()))

    def make(self):
        r = self.random
        for _ in range(self.count):
            self.world["sequences"].append(self.sequence())
            taste = Taste(r, self.live, 0.05)
            self.world["sequences"][-1]["second"] = make_parameters(taste)
        open_texts, waiting = [], list(range(self.count))
        forked = [number for number in waiting if has(self.world["sequences"][number]["focus"], "fork")]
        waiting = [number for number in waiting if number not in forked] + forked
        for number in waiting[:max(1, self.count - max(4, len(forked)))]:
            self.events.append(("open", number, 0, r.choice([1, 1, 1, 3])))
            open_texts.append(number)
        waiting = waiting[len(open_texts):]
        for _ in range(self.steps):
            self.events.append(("step", self.step(open_texts)))
            self.disturb(open_texts, waiting)
        for number in open_texts:
            if r.random() < 0.5:
                self.events.append(("end", number, r.choice([0, None, 1])))
        return self.world

    def disturb(self, open_texts, waiting):
        r = self.random
        number = r.choice(open_texts)
        if waiting and r.random() < 0.3:
            child = waiting.pop()
            place = r.choice([None, r.random(), r.random(), 1.0])
            self.events.append(("fork", number, child, place, r.random() < 0.25))
            open_texts.append(child)
        if r.random() < 0.15:
            self.events.append(("move", number, r.randrange(3), r.choice([1, 1, 2, 5]), r.random() < 0.4))
        focus = self.world["sequences"][number]["focus"]
        if r.random() < 0.1 or has(focus, "close") and r.random() < 0.3:
            self.events.append(("end", number, r.choice([0, 0, None, 1])))
            self.events.append(("move", number, r.randrange(3), 1, False))
        for chance, kind in ((0.05, "old"), (0.3, "cancel")):
            if r.random() < chance:
                self.events.append((kind, number))
        if r.random() < 0.25:
            numbers = sorted({number, r.choice(open_texts), r.choice(open_texts)})
            self.events.append(("sample", numbers, {**self.step([]), "rows": [self.row(n) for n in numbers]}))
        if r.random() < 0.05:
            event = self.step([number])
            self.events.append(("late", event, r.randrange(3)))
        for _ in range(2):
            if r.random() < 0.3:
                self.events.append(("retry", r.choice(open_texts), r.choice(["same", "same", "form", "salt", "stale",
                                                                             "ban"])))

    # --- sequences

    def sequence(self):
        r = self.random
        taste = Taste(r, self.live, r.choice([0.03, 0.1, 0.2, 0.3]))
        focus = [name for _ in range(2) if self.wanted for name in self.wanted.pop()]
        wanted = [path.removeprefix("open.parameters.") for path in focus if path.startswith("open.parameters.")]
        parameters = make_parameters(taste, wanted)
        opened = {"seed": r.choice([0, 1, r.getrandbits(64)])} if r.random() < 0.97 else {}
        if r.random() < 0.4 or "open.choice_index" in focus:
            opened["choice_index"] = r.choice([0, 1, 65535, r.randrange(65536)])
        if r.random() < 0.3:
            opened["model"] = "a-model"
        marked = bool((self.world["policy"] or {}).get("watermark"))
        if r.random() < (0.5 if marked else 0.01) or "open.watermark_key_id" in focus:
            opened["watermark_key_id"] = r.choice(["first", "second", "third", "third", "none"])
        if marked and r.random() < 0.95 and not has(focus, "parameters.watermark"):
            parameters.pop("watermark", None)
        return {"parameters": parameters, "open": opened, "states_live": r.random() < 0.3,
                "prompt": taste.tokens(0, 12), "focus": focus,
                "spoil": r.choice(spoils.OPENS) if r.random() < 0.1 and self.world["policy"] is None else None}

    # --- steps

    def step(self, open_texts):
        r = self.random
        many = r.random() < 0.8
        chosen = [number for number in open_texts if many or r.random() < 0.4] or open_texts[:1]
        return {"dtype": r.choice(sorted(made.SIZES)), "draft_dtype": r.choice(sorted(made.SIZES)),
                "stride": r.random() < 0.2, "priority": r.choice([None, None, None, -100, 0, 100, 7]),
                "timeout": r.random() < 0.2, "early": r.random() < 0.3, "tensor_rows": r.random() < 0.3,
                "rows": [self.row(number) for number in chosen]}

    def row(self, number):
        r = self.random
        sequence = self.world["sequences"][number]
        parameters = sequence["parameters"]
        wants = [name for name in sequence["focus"] if name.startswith("step.rows.")] if r.random() < 0.7 else []
        task = r.choice(TASKS)
        for name, part in TASK_FIELDS:
            if has(wants, part + ".") or f"step.rows{part}" in wants:
                task = name
        taste = Taste(r, self.live, 0.2)
        plan = {**PLAIN_ROW, "s": number, "task": task, "seed": r.getrandbits(40), "style": r.choice(made.STYLES),
                "fault": r.choice(made.FAULTS) if r.random() < 0.015 else None, "fault_at": r.randrange(6),
                "salt": r.choice([0, 1, 65535]) if r.random() < 0.1 else None, "skip": r.choice([1, 1, 1, 2, 9]),
                "jump": r.choice([0, 0, 0, 5]), "checkpoint": r.choice(["right"] * 9 + ["none", "old"]),
                "says_draw": r.random() < 0.5, "tensor_row": r.random() < 0.15 or has(wants, ".tensor_row"),
                "wrong": None, "tokens": [], "parents": [], "mode": None, "drafter": None, "replaced": False}
        plan["spoil"] = r.choice(spoils.STEPS) if r.random() < 0.02 else None
        for one, other, name in ((".draft_row", ".sparse", "two_forms"), (".tensor_row", ".compact", "tensor_row")):
            if has(wants, one) and has(wants, other):
                plan["spoil"] = name
        if r.random() < 0.01:
            plan["wrong"] = r.choice(["position", "history_hash"])
        if r.random() < 0.08 or has(wants, ".truncate_to"):
            plan["cut"] = r.choice([1, 1, 2, 5, 1000])
        if r.random() < 0.08 or has(wants, ".append_tokens"):
            plan["append"] = taste.tokens(1, 3)
        if r.random() < 0.3 or has(wants, ".mask."):
            plan["mask"] = self.mask(taste, [name for name in wants if ".mask." in name])
        if task == "score":
            self.score(plan, taste, parameters)
        elif task in ("verify", "tree"):
            self.drafts(plan, taste, parameters, wants)
        if r.random() < 0.15 or has(wants, ".compact"):
            plan["compact"] = {"first": r.choice([0, 1, 2, 5, 20, self.live, 1000]), "others": taste.tokens(0, 6),
                               "sums": r.random() < 0.6}
        return plan

    def mask(self, taste, wants=()):
        r = self.random
        form = r.choice([None, "mask_row", "uploaded_mask_id", "allowed_tokens"])
        for name in ("mask_row", "uploaded_mask_id", "allowed_tokens"):
            if has(wants, f".{name}"):
                form = name
        allowed = [token for token in range(self.live) if r.random() < 0.8]
        return {"form": form, "allowed": allowed if form else [],
                "banned": taste.several(1, 3) if form is None or r.random() < 0.4 else []}

    def score(self, plan, taste, parameters):
        plan["tokens"] = taste.tokens(1, 4)
        plan["race"] = self.random.random() < 0.5
        if self.random.random() < 0.4 and any(f"{kind}_logprobs" in parameters
                                              for kind in ("raw", "processed", "tempered")):
            plan["requested"] = [taste.several(0, 3) for _ in plan["tokens"]]

    def drafts(self, plan, taste, parameters, wants):
        r = self.random
        greedy = parameters.get("temperature") == 0
        plan["mode"] = r.choice(MODES)
        if r.random() < 0.95:
            if plan["mode"] == "GREEDY" and not greedy:
                plan["mode"] = "COUPLED"
            if plan["mode"] == "BLOCK" and (greedy or plan["task"] == "tree"):
                plan["mode"] = "REJECTION"
        for name in MODES:
            if has(wants, f"VERIFY_MODE_{name}"):
                plan["mode"] = name
        drafted = has(wants, ".draft_row") or has(wants, ".sparse") or has(wants, ".draft_sampling")
        if drafted and plan["mode"] not in ("REJECTION", "BLOCK") and not has(wants, ".mode="):
            plan["mode"] = "REJECTION"
        plan["probabilities"] = r.random() < 0.3
        if drafted or plan["mode"] == "BLOCK" or plan["mode"] == "REJECTION" and r.random() < 0.6:
            plan["drafter"] = r.choice(["dense", "sparse"])
            if has(wants, ".draft_row") != has(wants, ".sparse"):
                plan["drafter"] = "dense" if has(wants, ".draft_row") else "sparse"
        if plan["task"] == "verify":
            plan["tokens"] = taste.tokens(1, 4)
        else:
            plan["replaced"] = bool(plan["drafter"]) and r.random() < 0.5
            if plan["drafter"] and has(wants, "_REPLACEMENT"):
                plan["replaced"] = has(wants, "WITH_REPLACEMENT")
            self.tree(plan, taste)
        if r.random() < 0.3 or has(wants, ".masks"):
            if r.random() < 0.95 and not (has(wants, ".masks") and has(wants, ".mask.")):
                plan["mask"] = None
            plan["masks"] = []
            for _ in range(len(plan["tokens"]) + 1):
                plan["masks"].append(self.mask(taste, [name for name in wants if ".masks." in name])
                                     if r.random() < 0.6 else
                                     {"form": None, "allowed": [], "banned": []})

    def tree(self, plan, taste):
        r = self.random
        for _ in range(r.randint(1, 6)):
            parent, token = r.randint(-1, len(plan["tokens"]) - 1), taste.token()
            twice = (parent, token) in zip(plan["parents"], plan["tokens"])
            if not twice or plan["replaced"]:
                plan["parents"].append(parent)
                plan["tokens"].append(token)


def policy_options(policy):
    """The options of a policy, or of none."""
    found = set()
    for name, value in (policy or {}).items():
        found.add(f"policy.{name}")
        for item in [value] if name == "watermark" else value if name == "limits" else []:
            found |= {f"policy.{name}.{part}" + (f"={item[part]}" if part == "violation" else "") for part in item}
    return found


def has(names, part):
    return any(part in name for name in names)


def make_world(seed, tenants, wanted=(), sequences=8, steps=40):
    return Maker(seed, tenants, wanted, sequences, steps).make()
