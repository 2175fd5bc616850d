"""Calls of one row for each of a few texts, without a stream."""

import rows as made
import wire
from contract import INDEX, SampleRequest, numbers_of
from message import NUMBERS
from play import LAW_VERSION, Difference
from sequence import Refused, Run
from server import Server
from steps import Stepper


class Caller(Stepper):
    """A player that can do everything."""

    def sample(self, numbers, event):
        """One call, with a row for the parameters of each text."""
        texts = [text for text in map(self.alive, numbers) if text is not None]
        if not texts:
            return
        live, dtype = self.world["live"], event["dtype"]
        request = SampleRequest(dtype=NUMBERS[dtype], vocabulary_size=self.world["vocabulary"],
                                live_vocabulary_size=live)
        if event["early"]:
            request.law_version = LAW_VERSION
        asks = []
        for text, plan in zip(texts, event["rows"]):
            elements = made.logits(plan["seed"], plan["style"], dtype, self.world["vocabulary"], live, plan["fault"])
            request.logits += elements.tobytes()
            salt = plan["salt"] or 0
            row = request.rows.add(parameters=text.open.parameters, seed=text.open.seed, position=plan["jump"])
            if text.open.HasField("choice_index"):
                row.choice_index = text.open.choice_index
            if plan["salt"] is not None:
                row.draw_salt = salt
            asks.append(dict(step_id=0, task="draw", position=plan["jump"], salt=salt, masks=None, state=None, empty={},
                             bits=[made.bits(elements, dtype, live)]))
        self.note(0, request)
        got = wire.sample(self.channels[0], request, self.world["tenant"])
        self.note(0, got)
        for number, (text, ask) in enumerate(zip(texts, asks)):
            self.compare_sample(text, ask, request, got, number)

    def compare_sample(self, text, ask, request, got, number):
        options, result, refusal = text.options, got.rows[number], None
        changed = text.effect is not None and (text.effect.applied or text.effect.removed)
        try:
            if options.stateful or options.keeps_state or changed:
                raise Refused("CONTRADICTION")
            wanted = Run(options, ask, [], 0)
            Server.attempt(wanted)
            wanted.result.row, wanted.result.step_id = number, result.step_id
            if result != wanted.result or got.seeds[number] != text.open.seed:
                raise Difference(text.name, "a call, sample", got, wanted.result)
        except Refused as refused:
            refusal = refused.reason
            self.compare_refusal(text, result.error if result.HasField("error") else None, [Refused(refusal)], result)
        one = SampleRequest()
        one.CopyFrom(request)
        del one.rows[:]
        numbers = numbers_of(one, "sample") | numbers_of(request.rows[number], "sample.rows") | {INDEX["sample"]}
        self.count(text, numbers, refusal)
