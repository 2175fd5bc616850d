"""Steps of a world's texts: plans of rows become messages, and their results are compared with the model's."""

import numpy as np

import play
import rows as made
from contract import Reason, RowResult, StreamRequest, numbers_of
from drafts import Drafted
from message import PLAIN, Message
from play import Difference
from sequence import Refused
from sortition_verify.functions import UNIT_TEMPERATURE, Scale, canonical, total, weights, widen
from sortition_verify.row import in_order
from spoils import spoil

TASKS = {"verify": "verify_draft", "tree": "verify_tree"}
FORMS = ("mask_row", "uploaded_mask_id", "allowed_tokens")
MODES = {"GREEDY": 1, "REJECTION": 2, "COUPLED": 3, "BLOCK": 4}


class Stepper(play.Player):
    """A player that can step, too."""

    def late(self, event, server):
        """A step by a former self, on another stream to the same server, or where the sequence was never opened."""
        text = self.alive(event["rows"][0]["s"])
        if text is None or server == text.server:
            return
        model, now = self.models[server], text.server
        if text.name in model.opened and not model.opened[text.name].lost:
            return
        text.server = server
        message = Message(self.world, event, server)
        self.batch += 1
        message.step.batch_id = self.batch
        self.add_row(message, text, event["rows"][0])
        self.send_step(server, message)
        text.server = now

    def step(self, event):
        by_server = {}
        for plan in event["rows"]:
            text = self.text(plan["s"])
            if text.options is None or text.plan.get("dead") or text.name not in self.models[text.server].opened:
                continue
            by_server.setdefault(text.server, []).append((text, plan))
        for server, listed in by_server.items():
            message = Message(self.world, event, server)
            self.batch += 1
            message.step.batch_id = self.batch
            for text, plan in listed:
                self.add_row(message, text, plan)
            self.send_step(server, message)

    def send_step(self, server, message):
        request = message.seal()
        self.note(server, request)
        self.streams[server].send(request)
        expected = [self.model_says(server, *row) for row in message.rows]
        results = self.results_of(server, len(message.rows))
        step_numbers = numbers_of(step_without_rows(message.step), "step")
        for number, (text, row, ask) in enumerate(message.rows):
            got = results[number]
            if ask["compact"] and got.error.reason == Reason.Value("ROW_REQUIRED"):
                self.count(text, step_numbers | numbers_of(row, "step.rows"))
                got = self.send_whole(server, text, row, ask, message)
                got.row = number
            self.settle(message, text, row, ask, expected[number], got, step_numbers)

    def results_of(self, server, count):
        found = {}
        while len(found) < count:
            answer = self.receive(server)
            if answer.WhichOneof("kind") != "results" or answer.results.HasField("error"):
                raise Difference("all", "a step is refused as a whole", answer, "")
            for result in answer.results.rows:
                found[result.row] = result
        return found

    def send_whole(self, server, text, row, ask, old):
        """The same step again, with its rows whole."""
        message = Message(self.world, {**PLAIN, "dtype": old.dtype, "draft_dtype": old.draft_dtype}, server)
        self.batch += 1
        self.required += 1
        message.step.batch_id = self.batch
        self.write_row(message, text, dict(ask), {**ask["plan"], "compact": None, "spoil": None})
        request = message.seal()
        self.note(server, request)
        self.streams[server].send(request)
        return self.results_of(server, 1)[0]

    def model_says(self, server, text, row, ask):
        """A run, or refusals; a server gives one of them."""
        model = self.models[server]
        try:
            if ask["spoilt"] is None:
                return model.step(text.name, ask)
            model.check(text.name, ask)
        except Refused as refused:
            return [refused] if ask["spoilt"] is None else [refused, ask["spoilt"]]
        return [ask["spoilt"]]

    def settle(self, message, text, row, ask, expected, got, step_numbers):
        self.steps += 1
        server = message.server
        numbers = step_numbers | numbers_of(row, "step.rows") | ask["numbers"]
        if isinstance(expected, list):
            self.compare_refusal(text, got.error if got.WhichOneof("kind") == "error" else None, expected, got)
            self.count(text, numbers, Reason.Name(got.error.reason))
            return
        kind = got.WhichOneof("kind")
        given = getattr(got, kind).checkpoint if kind != "error" else b""
        wanted = RowResult()
        wanted.CopyFrom(expected.result)
        wanted.row = got.row
        if kind != "error":
            getattr(got, kind).ClearField("checkpoint")
        if got.SerializeToString(deterministic=True) != wanted.SerializeToString(deterministic=True):
            raise Difference(text.name, f"step {ask['step_id']}, {ask['task']}", got, wanted)
        if bool(given) != (expected.state is not None):
            raise Difference(text.name, "a checkpoint", given, expected.state)
        self.models[server].remember(text.name, expected, given)
        if text.last is None or text.last["ask"]["step_id"] < ask["step_id"]:
            self.advance(text, message, ask, expected, given)
        self.count(text, numbers)

    def advance(self, text, message, ask, run, given):
        text.last = {"server": message.server, "plan": ask["plan"], "ask": ask, "event": message.event}
        if not run.appended:
            return
        text.tokens = list(run.tokens if text.options.stateful else text.tokens) + run.appended
        text.prompt = run.prompt if text.options.stateful else text.prompt
        text.older, text.checkpoint = text.checkpoint, given
        out = run.result.draw if run.result.WhichOneof("kind") == "draw" else run.result.verify
        text.rewind = out.rewind if out.HasField("rewind") else None

    # --- rows

    def add_row(self, message, text, plan):
        """The next step of a text."""
        text.step_id += plan["skip"]
        ask = dict(step_id=text.step_id, task=plan["task"], truncate_to=None, append_tokens=[], history_hash=None,
                   tokens=plan["tokens"], parents=plan["parents"], mode=plan["mode"], drafted=None,
                   replaced=plan["replaced"], requested=plan["requested"], race=plan["race"], checkpoint=b"",
                   return_probabilities=plan["probabilities"], bans=[])
        self.rewrite(ask, text, plan)
        ask["salt"] = text.rewinds % 65536 if plan["salt"] is None else plan["salt"]
        if text.options.keeps_state:
            ask["checkpoint"] = {"right": text.checkpoint, "none": b"", "old": text.older}[plan["checkpoint"]]
        self.write_row(message, text, ask, plan)

    def rewrite(self, ask, text, plan):
        """Position and hash, with the rewrites that the plan or the last answer wants."""
        if not text.options.stateful:
            ask["position"] = len(text.tokens) + plan["jump"]
            return
        tokens, prompt = list(text.tokens), text.prompt
        if text.rewind is not None and plan["task"] != "score":
            cut, first = text.rewind.position, text.rewind.tokens[0]
            text.rewind, text.rewinds = None, text.rewinds + 1
            ask["truncate_to"], tokens = cut, tokens[:cut]
            text.bans = {cut: text.bans.get(cut, []) + [first]}
            ask["bans"] = sorted(set(text.bans[cut]))
        elif plan["cut"] is not None:
            cut = max(0, len(tokens) - plan["cut"])
            ask["truncate_to"], tokens, prompt = cut, tokens[:cut], min(prompt, cut)
        ask["append_tokens"] = list(plan["append"])
        tokens += plan["append"]
        ask["position"] = len(tokens) + (plan["wrong"] == "position")
        ask["history_hash"] = text.options.hash_of(tokens, prompt) ^ (plan["wrong"] == "history_hash")

    def retry(self, number, how):
        """The last answered step again: as it was, with its mask in another form, or changed."""
        text = self.text(number)
        if text.last is None or text.last["server"] != text.server:
            return
        if text.options is None or text.name not in self.models[text.server].opened:
            return
        plan = text.last["plan"]
        ask = {name: value for name, value in text.last["ask"].items() if name not in ("state", "elements", "bits")}
        ask["tokens"] = list(ask["tokens"])
        if how == "form" and plan["mask"]:
            plan = {**plan, "mask": other_form(plan["mask"], self.world["live"])}
        elif how == "salt":
            ask["salt"] = (ask["salt"] + 1) % 65536
        elif how == "stale":
            ask["step_id"] -= 1
        elif how == "ban":
            ask["bans"] = sorted({*ask["bans"], 0})
        if ask["step_id"] < 1:
            return
        event = {**text.last["event"], "rows": []}
        message = Message(self.world, event, text.server)
        self.batch += 1
        message.step.batch_id = self.batch
        self.write_row(message, text, ask, plan)
        self.send_step(text.server, message)

    def write_row(self, message, text, ask, plan):
        row = message.step.rows.add()
        row.request_id, row.step_id, row.position = text.name, ask["step_id"], ask["position"]
        if ask["history_hash"] is not None:
            row.history_hash = ask["history_hash"]
        if ask["truncate_to"] is not None:
            row.truncate_to = ask["truncate_to"]
        row.append_tokens.extend(ask["append_tokens"])
        if ask["salt"] or plan["salt"] is not None:
            row.draw_salt = ask["salt"]
        row.checkpoint = ask["checkpoint"]
        ask["plan"], ask["compact"], ask["states_sum"], ask["numbers"] = plan, False, False, set()
        self.add_task(message, row, ask, plan)
        self.add_masks(message, row, ask, plan)
        self.add_logits(message, text, row, ask, plan)
        ask["spoilt"] = spoil(plan["spoil"], self.world["live"], message, text, row, ask) if plan["spoil"] else None
        message.rows.append((text, row, ask))

    def add_task(self, message, row, ask, plan):
        task = plan["task"]
        if task == "draw":
            if plan["says_draw"]:
                row.draw.SetInParent()
            return
        if task == "score":
            row.score.tokens.extend(plan["tokens"])
            row.score.race = plan["race"]
            for ids in plan["requested"] or []:
                row.score.requested.add(tokens=ids)
            return
        verify = getattr(row, TASKS[task])
        verify.draft_tokens.extend(plan["tokens"])
        if task == "tree":
            verify.parents.extend(plan["parents"])
        verify.mode = MODES[plan["mode"]]
        if plan["probabilities"]:
            verify.return_probabilities = True
        if plan["drafter"]:
            self.add_drafter(message, verify, ask, plan)

    def add_drafter(self, message, verify, ask, plan):
        width, live, dtype = self.world["vocabulary"], self.world["live"], message.draft_dtype
        nodes = list(range(len(plan["tokens"])))
        if plan["task"] == "tree":
            nodes = [node for node in range(-1, len(plan["tokens"])) if node in plan["parents"]]
            verify.draft_sampling = 2 if plan["replaced"] else 1
        ask["drafted"] = {}
        if plan["drafter"] == "dense":
            verify.draft_row = len(message.drafts)
        for node in nodes:
            wanted = [plan["tokens"][node]] if plan["task"] != "tree" else [
                token for token, parent in zip(plan["tokens"], plan["parents"]) if parent == node]
            row = made.drafter(plan["seed"] + node + 7, width, live, dtype if plan["drafter"] == "dense" else "f32",
                               wanted)
            if plan["drafter"] == "dense":
                message.drafts.append(row)
                bits = widen(row[:live], dtype)
            else:
                bits = row[:live]
                kept = np.flatnonzero(bits)
                order = np.random.default_rng(plan["seed"] + node).permutation(kept)
                verify.sparse_probabilities.add(tokens=order.tolist(),
                                                probabilities=bits[order].view(np.float32).tolist())
            ask["drafted"][node] = Drafted((i, b) for i, b in enumerate(bits) if b)

    def add_masks(self, message, row, ask, plan):
        bans = ask["bans"]
        mask = dict(plan["mask"]) if plan["mask"] else {"form": None, "banned": []}
        mask["banned"] = sorted({*mask["banned"], *bans})
        count = {"draw": 1, "score": len(plan["tokens"])}.get(plan["task"], len(plan["tokens"]) + 1)
        ask["masks"], ask["both_masks"], ask["empty"] = None, False, {}
        if plan["masks"] and plan["task"] in TASKS:
            if mask["form"] or plan["mask"]:
                self.put_mask(message, ask, row.mask, mask)
                ask["both_masks"] = True
            listed = getattr(row, TASKS[plan["task"]]).masks
            made_masks = [self.put_mask(message, ask, listed.add(), {**one, "banned": sorted({*one["banned"], *bans})})
                          for one in plan["masks"][:count]]
            ask["masks"] = [allowed for allowed, _ in made_masks]
            ask["empty"] = {i: f"{TASKS[plan['task']]}.masks{part}" for i, (_, part) in enumerate(made_masks)
                            if part is not None}
        elif mask["form"] or mask["banned"]:
            allowed, part = self.put_mask(message, ask, row.mask, mask)
            ask["masks"] = [allowed] * count
            ask["empty"] = {} if part is None else {i: f"mask{part}" for i in range(count)}

    def put_mask(self, message, ask, out, mask):
        """Writes a mask in its form: (the allowed ids, the part that is named if no token is live, or None)."""
        live = self.world["live"]
        allowed = np.ones(live, bool)
        if mask["form"]:
            allowed[:] = False
            allowed[mask["allowed"]] = True
        if mask["form"] == "mask_row":
            out.mask_row = len(message.masks)
            message.masks.append(made.packed(allowed, self.world["vocabulary"]))
        elif mask["form"] == "uploaded_mask_id":
            ask["numbers"] |= self.upload(message, allowed)
            out.uploaded_mask_id = self.masks
        elif mask["form"]:
            out.allowed_tokens.tokens.extend(mask["allowed"])
            out.allowed_tokens.SetInParent()
        part = "" if not allowed.any() else ".banned_tokens" if mask["banned"] else None
        out.banned_tokens.extend(mask["banned"])
        if mask["banned"]:
            allowed[mask["banned"]] = False
        return allowed, part

    def upload(self, message, allowed):
        self.masks = self.masks % 200 + 1
        request = StreamRequest()
        request.upload_mask.mask_id = self.masks
        request.upload_mask.vocabulary_size = self.world["vocabulary"]
        request.upload_mask.mask.rows = 1
        request.upload_mask.mask.source.inline.SetInParent()
        request.payloads.append(made.packed(allowed, self.world["vocabulary"]))
        got = self.ask(message.server, request).mask_uploaded
        if got.mask_id != self.masks or got.HasField("error"):
            raise Difference("all", "an uploaded mask", got, "")
        return numbers_of(request.upload_mask, "upload_mask")

    def add_logits(self, message, text, row, ask, plan):
        live, width = self.world["live"], self.world["vocabulary"]
        count = {"draw": 1, "score": len(plan["tokens"])}.get(plan["task"], len(plan["tokens"]) + 1)
        rows = [made.logits(plan["seed"] + i, plan["style"], message.dtype, width, live,
                            plan["fault"] if i == plan["fault_at"] % count else None) for i in range(count)]
        shares = plan["tensor_row"] and count <= len(message.logits)
        if shares:
            first = plan["seed"] % (len(message.logits) - count + 1)
            rows = message.logits[first:first + count]
            row.tensor_row, message.counts_rows = first, True
        ask["bits"] = [made.bits(one, message.dtype, live) for one in rows]
        if plan["compact"] and not plan["fault"] and not shares:
            ask["compact"] = True
            ask["states_sum"] = plan["compact"]["sums"] and (
                text.options.one_temperature is not None or plan["seed"] % 8 == 0)
            for elements, bits in zip(rows, ask["bits"]):
                self.add_compact(message, text, row, elements, bits, plan["compact"], ask["states_sum"])
        else:
            # A row that names its tensor rows leaves those unused that it would take by default.
            if plan["tensor_row"] and not shares:
                message.late.append((row, rows))
            message.logits += [np.full_like(one, 0x5A5A) for one in rows] if plan["tensor_row"] else rows

    @staticmethod
    def add_compact(message, text, row, elements, bits, wanted, states_sum):
        order = in_order(canonical(bits))
        first = order[:max(1, wanted["first"])]
        listed = set(first.tolist())
        others = sorted({token for token in wanted["others"] if token < len(bits)} - listed)
        whole = len(first) == len(order)
        out = row.compact.add(offset=len(message.pairs), first=len(first), others=len(others), is_whole=whole)
        ids = np.array([*first, *others], "<u4")
        message.pairs += ids.tobytes() + elements[ids.astype(np.int64)].tobytes()
        if wanted["sums"] and len(order):
            out.unit_sum = sum_at(UNIT_TEMPERATURE, bits, order)
            scale = text.options.one_temperature
            if scale is not None or states_sum:
                out.sum = sum_at(scale or UNIT_TEMPERATURE, bits, order)


def sum_at(scale, bits, order):
    live = canonical(bits)[order]
    return total(weights(Scale(live[0], scale).distances(live)))


def other_form(mask, live):
    """The same mask in another form: tokens that it does not allow become banned, too, or stop being banned."""
    if not mask["form"]:
        allowed = sorted(set(range(live)) - set(mask["banned"]))
        return {"form": "allowed_tokens", "allowed": allowed, "banned": []}
    form = FORMS[(FORMS.index(mask["form"]) + 1) % len(FORMS)]
    others = sorted(set(range(live)) - set(mask["allowed"]))[:3]
    return {"form": form, "allowed": mask["allowed"], "banned": sorted({*mask["banned"], *others})}


def step_without_rows(step):
    copied = type(step)()
    copied.CopyFrom(step)
    copied.ClearField("rows")
    return copied


__all__ = ["Stepper"]
