"""Published vectors (kernels/law/LAW.md, section 10): reads their rows and compares answers with them."""

import numpy as np

from sortition_verify import functions as law
from sortition_verify.compact import statement
from sortition_verify.history import edits, phase_after, watermark_noise
from sortition_verify.options import first_state
from sortition_verify.parameters import compile_parameters, within
from sortition_verify.row import Compiled, Draft, Row, RowError, answer

U32, U64 = np.uint32, np.uint64


def shaped_elements(row):
    """The tensor's elements of a row that is given as a shape and a seed."""
    shape, seed, dtype = row["logits"]["shape"], row["logits"]["seed"], row["dtype"]
    x, y, _, _ = law.philox(np.arange(row["vocabulary"], dtype=U64), 0, 0, 0, (seed, 0))
    n = sum(x >> U64(8 * i) & U64(255) for i in range(4)).astype(np.int64) - 510
    y = y.astype(np.int64)
    if shape == "flat":
        logits = n / 4096
    elif shape == "ties":
        logits = n // 32 / 2
    else:
        logits = np.where(y % 512 == 0, n + 512 + (y >> 9) % 512, n) / 64
    if shape == "holes":
        logits = np.where(y % 4 == 1, -np.inf, logits)
    return narrowed(logits.astype(np.float32), dtype)


def narrowed(logits, dtype):
    if dtype == "f32":
        return logits.view(U32)
    if dtype == "bf16":
        return (logits.view(U32) >> U32(16)).astype(np.uint16)
    return logits.astype(np.float16).view(np.uint16)


def compiled_of(row):
    given = row["compiled"]
    names = ("greedy", "multiplier", "exponent", "window", "min_p_distance", "top_k", "top_p", "repetition",
             "inverse_repetition")
    temperature = law.float_of(row["options"]["temperature_bits"])
    return Compiled(temperature=1.0 if given["greedy"] else temperature, chain=given.get("chain", []),
                    **{name: given[name] for name in names})


def draft_of(row):
    given = row.get("draft", {"form": "certain"})
    if given["form"] == "certain":
        return Draft()
    dtype = given.get("dtype", "f32")
    return Draft(certain=False, dense=given["form"] == "dense", tokens=given["tokens"],
                 bits=law.widen(given["elements"], dtype), rest=int(law.widen([given.get("rest", 0)], dtype)[0]))


def allowed_bits_of(row):
    if "allowed_bits_shape" in row:
        words = (row["vocabulary"] + 31) // 32
        return law.philox(np.arange(words, dtype=U64), 0, 0, 0, (1, 0))[0].astype(U32) | U32(0x00FF00FF)
    return row.get("allowed_bits")


def row_of(row):
    """The row of the law that a published row describes."""
    logits = row["logits"]
    elements = logits["elements"] if "elements" in logits else shaped_elements(row)
    return Row(bits=law.widen(elements, row["dtype"]), compiled=compiled_of(row), seed=int(row["noise"]["seed"]),
               position=row["noise"]["position"], stream=row["noise"]["stream"],
               mask_nan=row["compiled"]["mask_nan"], edits=row.get("patches", []),
               allowed_tokens=row.get("allowed_tokens"), allowed_bits=allowed_bits_of(row),
               state=int(row.get("sampler_state", "0")), score=row.get("score"), verify=row.get("verify"),
               draft=draft_of(row))


def answer_of(row):
    """The answer to a published row, in the form of the file."""
    try:
        got = answer(row_of(row))
    except RowError as error:
        return {"error": error.kind, "error_token": error.token}
    asked, asks = row["compiled"], row["compiled"]["asks"]
    out = {"token": got.token}
    if got.accepted is not None:
        out["accepted"] = got.accepted
    if {"processed", "kept_count", "kept_tokens"} & set(asks):
        out["kept"] = len(got.processed.ids)
    for name in ("raw", "processed", "tempered"):
        if name in asks:
            distribution = getattr(got, name)
            out[name] = distribution_text(distribution, got.token, asked[f"{name}_top"], row.get("requested", []))
    if "entropy" in asks:
        weights, surplus, bits = got.processed.entropy()
        out["entropy"] = [str(weights), str(surplus), bits]
    if "kept_tokens" in asks:
        by_id = np.argsort(got.processed.ids)
        out["kept_tokens"] = [[int(got.processed.ids[i]), int(got.processed.bits[i])] for i in by_id]
    if "kept_log_mass" in asks:
        kept, whole, bits = got.kept_mass()
        out["kept_log_mass"] = [str(kept), str(whole), bits]
    if "race_place" in asks:
        rank, lag, margin = got.race_place()
        out["race_place"] = [rank, str(lag), law.bits_of(margin)]
    if got.state:
        out["sampler_state"] = str(got.state)
    if got.dynamic_temperature:
        out["temperature"] = got.dynamic_temperature
    return out


def distribution_text(distribution, token, first, requested):
    bits, rank = distribution.bits_and_rank(token)
    ids, firsts = distribution.ids[:first], distribution.bits[:first]
    top = [list(one) for one in zip(ids.tolist(), firsts.tolist(), distribution.logprob_bits(firsts).tolist())]
    out = {"max_bits": distribution.max_bits, "weight_sum": str(distribution.weight_sum), "chosen_bits": bits,
           "chosen_logprob_bits": distribution.logprob_bits(bits), "rank": rank, "top": top}
    if requested:
        bits, ranks = zip(*(distribution.bits_and_rank(asked) for asked in requested))
        logprobs = distribution.logprob_bits(np.array(bits, U32)).tolist()
        out["requested"] = [list(one) for one in zip(bits, ranks, logprobs)]
    return out


def consequences(history, row):
    """Edits, allowed tokens and noise after a history, as a published row has them. `row` has the seed."""
    parameters, prompt, output = history["parameters"], history["prompt"], history["output"]
    tokens = prompt + output
    phase, forced = phase_after(parameters, tokens, len(prompt))
    parameters = within(parameters, phase)
    allowed = sorted(parameters.get("allowed_token_ids", [])) if forced is None else [forced]
    out = {"patches": edits(parameters, tokens, len(prompt)).tolist() if forced is None else []}
    if allowed:
        out["allowed_tokens"] = allowed
    noise = watermark_noise(parameters, tokens)
    if noise is None:
        seed, position, stream = int(row["noise"]["seed"]), len(tokens), history["stream"]
    else:
        (low, high), position, stream = noise
        seed = high << 32 | low
    out["noise"] = {"seed": str(seed), "position": position, "stream": stream}
    return out


def history_differences(history, row):
    """The paths at which a published row differs from the consequences of its history."""
    found = consequences(history, row)
    wanted = {"patches": [], **{name: row[name] for name in row if name in (*found, "allowed_tokens")}}
    yield from compare(found, wanted, "")
    phase, _ = phase_after(history["parameters"], history["prompt"] + history["output"], len(history["prompt"]))
    compiled, mask_nan = compile_parameters(within(history["parameters"], phase))
    wanted = compiled_of(row)
    if wanted.chain:
        wanted.temperature = compiled.temperature
    if (compiled, mask_nan, first_state(compiled.chain)) != (wanted, row["compiled"]["mask_nan"],
                                                             int(row.get("sampler_state", "0"))):
        yield f".compiled: {compiled!r:.80}, published {wanted!r:.80}"


def compact_differences(compact, row):
    """The paths at which a published compact row differs from its row's logits."""
    named = [token for token, _ in compact["others"]]
    yield from compare(statement(row_of(row), len(compact["first"]), named), compact, ".compact")


def differences(item):
    """The paths at which a published row differs from what this program says of it; none if all is equal.

    An item is a row, or an object with the row and the history that it follows, or with the row and its compact form.
    """
    row = item.get("row", item)
    found = list(compare(answer_of(row), row["answer"], ""))
    if "history" in item:
        found += history_differences(item["history"], row)
    if "compact" in item:
        found += compact_differences(item["compact"], row)
    return found


def compare(got, wanted, path):
    if isinstance(got, dict) and isinstance(wanted, dict):
        for name in {**got, **wanted}:
            yield from compare(got.get(name), wanted.get(name), f"{path}.{name}")
    elif got != wanted:
        yield f"{path or '.'}: {got!r:.80}, published {wanted!r:.80}"
