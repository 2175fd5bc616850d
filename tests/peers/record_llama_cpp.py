"""Records the answers of llama.cpp's own samplers to rows: record_llama_cpp.py FILE LIBLLAMA VERSION."""

import ctypes
import math
import sys

from recorded_rows import Recorder, Tokens, history, is_askable, rows

SEED = 5


class TokenData(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class TokenDataArray(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.POINTER(TokenData)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]


class Vector(ctypes.Structure):
    """libstdc++'s std::vector."""

    _fields_ = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("capacity", ctypes.c_void_p)]

    @classmethod
    def over(cls, array: ctypes.Array) -> "Vector":
        begin = ctypes.addressof(array)
        end = begin + ctypes.sizeof(array)
        vector = cls(begin, end, end)
        vector.array = array
        return vector


# llama.h's functions by their last part, and the one of llama-sampler.h that takes DRY's breakers as tokens.
DRY = "_Z30llama_sampler_init_dry_testingffiiRKSt6vectorIS_IiSaIiEESaIS1_EE"
FLOAT, INT, SIZE, UNSIGNED = ctypes.c_float, ctypes.c_int32, ctypes.c_size_t, ctypes.c_uint32
ARGUMENTS = {
    "penalties": (INT, INT, FLOAT, FLOAT, FLOAT),
    "top_n_sigma": (FLOAT,),
    "top_k": (INT,),
    "typical": (FLOAT, SIZE),
    "top_p": (FLOAT, SIZE),
    "min_p": (FLOAT, SIZE),
    "xtc": (FLOAT, FLOAT, SIZE, UNSIGNED),
    "temp_ext": (FLOAT, FLOAT, FLOAT),
    "mirostat": (INT, UNSIGNED, FLOAT, FLOAT, INT),
    "mirostat_v2": (UNSIGNED, FLOAT, FLOAT),
    "adaptive_p": (FLOAT, FLOAT, UNSIGNED),
}


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


class Library:
    def __init__(self, path: str) -> None:
        self.library = ctypes.CDLL(path)
        self.silence = LOG(lambda level, text, data: None)
        self.call("llama_log_set", None, LOG, ctypes.c_void_p)
        self.library.llama_log_set(self.silence, None)
        self.call("llama_sampler_free", None, ctypes.c_void_p)
        self.call("llama_sampler_accept", None, ctypes.c_void_p, INT)
        self.call("llama_sampler_apply", None, ctypes.c_void_p, ctypes.POINTER(TokenDataArray))
        for name, types in ARGUMENTS.items():
            self.call(f"llama_sampler_init_{name}", ctypes.c_void_p, *types)
        self.call(DRY, ctypes.c_void_p, FLOAT, FLOAT, INT, INT, ctypes.POINTER(Vector))

    def call(self, name: str, result: object, *arguments: object) -> None:
        function = getattr(self.library, name)
        function.restype, function.argtypes = result, arguments

    def make(self, name: str, *arguments: object) -> int:
        return getattr(self.library, f"llama_sampler_init_{name}")(*arguments)

    def make_dry(self, multiplier: float, base: float, allowed: int, window: int, breakers: list[Tokens]) -> int:
        inner = [Vector.over((ctypes.c_int32 * len(b))(*b)) for b in breakers]
        outer = Vector.over((Vector * len(inner))(*inner))
        return getattr(self.library, DRY)(multiplier, base, allowed, window, ctypes.byref(outer))


# Named as in the contract; below they become samplers in the order of llama.cpp's own front ends.
SCOPE = {"window": 50, "repetition_counts_prompt": True, "frequency_counts_prompt": True}
BREAKERS = [{"tokens": [10]}, {"tokens": [25, 40]}]
# Typical-p behind top-n-sigma is left out: there llama.cpp multiplies 0 by the logarithm of 0, and its entropy is NaN.
OPTIONS = (
    {"temperature": 0.7},
    {"top_k": 9},
    {"typical_p": 0.4},
    {"typical_p": 0.9, "temperature": 1.3},
    {"top_p": 0.85},
    {"min_p": 0.04, "temperature": 1.6},
    {"top_n_sigma": 1.0},
    {"top_n_sigma": 2.5, "temperature": 1.5},
    {"xtc": {"probability": 1, "threshold": 0.01}},
    {"xtc": {"probability": 1, "threshold": 0.004}, "top_k": 40, "temperature": 0.8},
    {"dynamic_temperature": {"range": 0.5, "exponent": 1.0}},
    {"dynamic_temperature": {"range": 0.3, "exponent": 2.2}, "top_k": 30, "temperature": 0.9},
    {"repetition_penalty": 1.2, "penalty_scope": SCOPE},
    {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.3, "penalty_scope": SCOPE, "top_k": 80},
    {"dry": {"multiplier": 0.8, "base": 1.75, "allowed_length": 2, "window": 63}, "top_k": 90},
    {"dry": {"multiplier": 1.1, "base": 1.4, "allowed_length": 1, "window": 50, "sequence_breakers": BREAKERS}},
    {"mirostat": {"version": 1, "tau": 3.0, "eta": 0.5, "m": 100}, "temperature": 1.2},
    {"mirostat": {"version": 2, "tau": 4.0, "eta": 0.7}},
    {"adaptive_p": {"target": 0.3, "decay": 0.8}, "min_p": 0.01},
    {"repetition_penalty": 1.05, "penalty_scope": SCOPE, "dry": {"multiplier": 0.5, "window": 63}, "top_n_sigma": 3.0,
     "top_k": 100, "top_p": 0.95, "min_p": 0.001, "temperature": 0.8},
    {"top_k": 75, "typical_p": 0.97, "top_p": 0.95, "min_p": 0.002, "xtc": {"probability": 1, "threshold": 0.1},
     "dynamic_temperature": {"range": 0.2, "exponent": 0.8}, "temperature": 0.8},
)
STEPS = 4  # of samplers with a state


def samplers(library: Library, options: dict, vocabulary: int) -> list[int]:
    made = []
    if "repetition_penalty" in options:
        made.append(library.make("penalties", vocabulary, SCOPE["window"], options["repetition_penalty"],
                                 options.get("frequency_penalty", 0), options.get("presence_penalty", 0)))
    if dry := options.get("dry"):
        breakers = [b["tokens"] for b in dry.get("sequence_breakers", [])]
        made.append(library.make_dry(dry["multiplier"], dry.get("base", 1.75), dry.get("allowed_length", 2),
                                     dry["window"], breakers))
    if "top_n_sigma" in options:
        made.append(library.make("top_n_sigma", options["top_n_sigma"]))
    if "top_k" in options:
        made.append(library.make("top_k", options["top_k"]))
    for name, sampler in (("typical_p", "typical"), ("top_p", "top_p"), ("min_p", "min_p")):
        if name in options:
            made.append(library.make(sampler, options[name], 0))
    if xtc := options.get("xtc"):
        made.append(library.make("xtc", xtc["probability"], xtc["threshold"], 0, SEED))
    dynamic = options.get("dynamic_temperature", {})
    made.append(library.make("temp_ext", options.get("temperature", 1.0), dynamic.get("range", 0),
                             dynamic.get("exponent", 1)))
    if mirostat := options.get("mirostat"):
        if mirostat["version"] == 1:
            made.append(library.make("mirostat", vocabulary, SEED, mirostat["tau"], mirostat["eta"], mirostat["m"]))
        else:
            made.append(library.make("mirostat_v2", SEED, mirostat["tau"], mirostat["eta"]))
    if adaptive := options.get("adaptive_p"):
        made.append(library.make("adaptive_p", adaptive["target"], adaptive["decay"], SEED))
    return made


def processed(library: Library, chain: list[int], logits: list[float]) -> tuple[dict[int, float], int]:
    """Logprobs of the tokens that the chain keeps, and the token that it selects (-1: none)."""
    array = (TokenData * len(logits))(*[TokenData(i, x, 0) for i, x in enumerate(logits)])
    candidates = TokenDataArray(array, len(logits), -1, False)
    for sampler in chain:
        library.library.llama_sampler_apply(sampler, ctypes.byref(candidates))
    kept = [candidates.data[i] for i in range(candidates.size)]
    values = {token.id: token.logit for token in kept if token.logit != -math.inf}
    top = max(values.values())
    total = math.log(math.fsum(math.exp(x - top) for x in values.values()))
    selected = candidates.data[candidates.selected].id if candidates.selected >= 0 else -1
    return {i: x - top - total for i, x in values.items()}, selected


def main(path: str, library_path: str, version: str) -> None:
    library = Library(library_path)
    recorder = Recorder(
        f"llama.cpp as in llama-cpp-python {version}",
        "log of softmax, in f64, of the f32 logits that its samplers leave",
    )
    for name, logits in rows().items():
        tokens = history(len(logits))
        for options in (o for o in OPTIONS if is_askable(logits, o)):
            chain = samplers(library, options, len(logits))
            for token in tokens:
                for sampler in chain:
                    library.library.llama_sampler_accept(sampler, token)
            parameters = dict(options, chain={"preset": "PRESET_LLAMA_CPP"})
            is_stateful = "mirostat" in options or "adaptive_p" in options
            earlier: Tokens = []
            for _ in range(STEPS if is_stateful else 1):
                logprobs, selected = processed(library, chain, logits)
                recorder.add(name, parameters, logprobs, drawn=list(earlier))
                earlier.append(selected)
                for sampler in chain if is_stateful else ():
                    library.library.llama_sampler_accept(sampler, selected)
            for sampler in chain:
                library.library.llama_sampler_free(sampler)
    recorder.write(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
