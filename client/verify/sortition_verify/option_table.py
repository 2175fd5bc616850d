"""The options of kernels/law/options.inc, from which tests/lint/option_tables.py writes this file."""

# Options of the law and their off values.
DEFAULTS = {
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "typical_p": 1.0,
    "top_n_sigma": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_a": 0.0, "top_h": 0.0, "p_less": False,
    "min_k": False, "min_k_tau": 3.0, "min_keep": 0, "xtc_probability": 0.0, "xtc_threshold": 0.1,
    "dynamic_temperature_range": 0.0, "dynamic_temperature_exponent": 1.0, "mirostat": 0, "mirostat_tau": 5.0,
    "mirostat_eta": 0.1, "mirostat_m": 100, "adaptive_p": False, "adaptive_target": 0.0, "adaptive_decay": 0.9,
    "smoothing_factor": 0.0, "smoothing_curve": 1.0,
}
# Messages among the contract's fields: the option that each part is.
NESTED = {
    "min_k": {"tau": "min_k_tau"},
    "xtc": {"probability": "xtc_probability", "threshold": "xtc_threshold"},
    "dynamic_temperature": {"range": "dynamic_temperature_range", "exponent": "dynamic_temperature_exponent"},
    "mirostat": {"version": "mirostat", "tau": "mirostat_tau", "eta": "mirostat_eta", "m": "mirostat_m"},
    "adaptive_p": {"target": "adaptive_target", "decay": "adaptive_decay"},
    "quadratic_smoothing": {"factor": "smoothing_factor", "curve": "smoothing_curve"},
}
# Messages that are on where they are set.
BY_PRESENCE = ("min_k", "adaptive_p")
# Fields that reach a row as its edits, allowed tokens or noise (history.py), or that ask for more in the answer.
ELSEWHERE = {
    "frequency_penalty", "presence_penalty", "penalty_scope", "logit_bias", "allowed_token_ids", "banned_token_ids",
    "nan_policy", "raw_logprobs", "processed_logprobs", "logprob_token_ids", "entropy", "kept_set", "chain", "dry",
    "no_repeat_ngram_size", "min_tokens", "stop_token_ids", "bad_words", "phases", "watermark", "tempered_logprobs",
    "kept_log_mass", "repetition_stop", "banned_phrases",
}
# Fields that a phase may replace.
IN_PHASES = {
    "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty",
    "logit_bias", "allowed_token_ids", "banned_token_ids", "typical_p", "top_n_sigma", "epsilon_cutoff", "eta_cutoff",
    "top_a", "top_h", "p_less", "min_k", "min_keep", "xtc", "dynamic_temperature", "quadratic_smoothing",
}
# Form, least and largest value. AboveLow excludes the least one; ZeroOr and OneOr take 0 and 1 too.
RANGES = {
    "temperature": ("ZeroOr", 0.01, 100), "top_p": ("AboveLow", 0, 1), "min_p": ("Closed", 0, 1),
    "repetition_penalty": ("Closed", 0.01, 100), "frequency_penalty": ("Closed", -100, 100),
    "presence_penalty": ("Closed", -100, 100), "penalty_scope.window": ("UpTo", 0, 1073741824),
    "penalty_scope.ignored_prefix": ("UpTo", 0, 1073741824), "typical_p": ("AboveLow", 0, 1),
    "top_n_sigma": ("ZeroOr", 0.01, 100), "epsilon_cutoff": ("Closed", 0, 1), "eta_cutoff": ("Closed", 0, 1),
    "top_a": ("Closed", 0, 1), "top_h": ("Closed", 0, 1), "min_k_tau": ("Closed", 0, 100),
    "min_keep": ("Closed", 0, 1000), "xtc_probability": ("Closed", 0, 1), "xtc_threshold": ("AboveLow", 0, 1),
    "dynamic_temperature_range": ("Closed", 0, 100), "dynamic_temperature_exponent": ("Closed", 0.01, 10),
    "mirostat": ("Closed", 0, 2), "mirostat_tau": ("AboveLow", 0, 20), "mirostat_eta": ("AboveLow", 0, 1),
    "mirostat_m": ("Closed", 2, 1000), "adaptive_target": ("Required", 0, 1), "adaptive_decay": ("Closed", 0, 0.99),
    "smoothing_factor": ("Closed", 0, 100), "smoothing_curve": ("Closed", 1, 3),
    "dry.multiplier": ("ZeroOr", 0.01, 100), "dry.base": ("OneOr", 1.01, 100),
    "dry.allowed_length": ("Closed", 1, 1024), "dry.window": ("UpTo", 0, 1073741824),
    "no_repeat_ngram_size": ("UpTo", 0, 1024), "min_tokens": ("UpTo", 0, 1073741824),
    "watermark.context_width": ("Closed", 1, 64), "repetition_stop.repeats": ("ZeroOr", 2, 16384),
    "repetition_stop.min_period": ("Closed", 1, 512), "repetition_stop.max_period": ("Closed", 1, 512),
    "repetition_stop.min_length": ("Closed", 0, 16384), "repetition_stop.min_tokens": ("UpTo", 0, 1073741824),
}
# Parts of messages that the law does not see, where they are absent.
OF_PARTS = {
    "penalty_scope.window": 0, "penalty_scope.ignored_prefix": 0, "dry.multiplier": 0, "dry.base": 1.75,
    "dry.allowed_length": 2, "dry.window": 0, "watermark.context_width": 4, "repetition_stop.repeats": 0,
    "repetition_stop.min_period": 1, "repetition_stop.max_period": 256, "repetition_stop.min_length": 256,
    "repetition_stop.min_tokens": 0,
}
# Limits, by name: the largest value that a server can have.
LIMITS = {
    "max_string_tokens": 1024, "max_tag_tokens": 32, "max_phases": 8, "max_choice_index": 65535,
    "max_history": 1073741824, "max_listed_tokens": 131072,
}
# Effect of a number: with FewerBelow, Counts and Window a default of 0 stands for all.
EFFECTS = {
    "top_k": "Counts", "top_p": "FewerBelow", "min_p": "FewerAbove", "penalty_scope.window": "Window",
    "typical_p": "FewerBelow", "top_n_sigma": "FewerBelow", "epsilon_cutoff": "FewerAbove",
    "eta_cutoff": "FewerAbove", "top_a": "FewerAbove", "top_h": "FewerBelow", "dry.window": "Window",
}
# Samplers that temperature 0 refuses.
NOT_GREEDY = ("typical_p", "xtc", "mirostat", "adaptive_p")
# Samplers whose stage has one operand, or none, and what it is.
OPERANDS = {
    "min_p": "Threshold", "top_k": "Number", "top_p": "Mass", "typical_p": "Mass", "epsilon_cutoff": "Threshold",
    "eta_cutoff": "Threshold", "top_a": "Threshold", "p_less": "Flag",
}
# The samplers' orders in the presets.
ORDERS = {
    "vllm": (
        "temperature", "quadratic_smoothing", "top_n_sigma", "min_k", "min_p", "top_k", "top_p", "typical_p",
        "epsilon_cutoff", "eta_cutoff", "top_a", "top_h", "p_less", "xtc", "mirostat", "adaptive_p",
    ),
    "llama_cpp": (
        "quadratic_smoothing", "top_n_sigma", "min_k", "top_k", "typical_p", "top_p", "min_p", "epsilon_cutoff",
        "eta_cutoff", "top_a", "top_h", "p_less", "xtc", "temperature", "mirostat", "adaptive_p",
    ),
    "hf": (
        "temperature", "quadratic_smoothing", "top_n_sigma", "min_k", "top_h", "top_k", "top_p", "min_p", "typical_p",
        "epsilon_cutoff", "eta_cutoff", "top_a", "p_less", "xtc", "mirostat", "adaptive_p",
    ),
}
# Fields of the contract that receipts have, by number: name and kind. A list of one kind is a repeated
# field, a tuple an enumeration. WITHIN: those that a phase may replace.
WITHIN = {
    1: ("temperature", "float"), 2: ("top_k", "number"), 3: ("top_p", "float"), 4: ("min_p", "float"),
    5: ("repetition_penalty", "float"), 6: ("frequency_penalty", "float"), 7: ("presence_penalty", "float"),
    9: ("logit_bias", [{1: ("token", "number"), 2: ("bias", "float")}]), 10: ("allowed_token_ids", ["number"]),
    11: ("banned_token_ids", ["number"]), 20: ("typical_p", "float"), 21: ("top_n_sigma", "float"),
    22: ("epsilon_cutoff", "float"), 23: ("eta_cutoff", "float"), 24: ("top_a", "float"), 25: ("top_h", "float"),
    26: ("p_less", "bool"), 27: ("xtc", {1: ("probability", "float"), 2: ("threshold", "float")}),
    28: ("dynamic_temperature", {1: ("range", "float"), 2: ("exponent", "float")}),
    31: ("quadratic_smoothing", {1: ("factor", "float"), 2: ("curve", "float")}),
    50: ("min_k", {1: ("tau", "float")}), 51: ("min_keep", "number"),
}
# Fields whose value 0 is no value: no words state it.
IMPLICIT = {"nan_policy", "token", "bias"}
FIELDS = {
    **WITHIN, 8: ("penalty_scope", {1: ("window", "number"), 2: ("repetition_counts_prompt", "bool"), 3:
    ("frequency_counts_prompt", "bool"), 4: ("ignored_prefix", "number")}),
    12: ("nan_policy", ("NAN_POLICY_UNSPECIFIED", "NAN_POLICY_FAIL", "NAN_POLICY_MASK")), 18: ("chain", {1: ("preset",
    ("PRESET_UNSPECIFIED", "PRESET_VLLM", "PRESET_LLAMA_CPP", "PRESET_HF")), 2: ("explicit", {1: ("samplers",
    [str])})}), 29: ("mirostat", {1: ("version", "number"), 2: ("tau", "float"), 3: ("eta", "float"), 4: ("m",
    "number")}), 30: ("adaptive_p", {1: ("target", "float"), 2: ("decay", "float")}), 32: ("dry", {1: ("multiplier",
    "float"), 2: ("base", "float"), 3: ("allowed_length", "number"), 4: ("window", "number"), 5: ("sequence_breakers",
    [{1: ("tokens", ["number"])}])}), 33: ("no_repeat_ngram_size", "number"), 34: ("min_tokens", "number"),
    35: ("stop_token_ids", ["number"]), 36: ("bad_words", [{1: ("tokens", ["number"])}]), 37: ("phases", [{1:
    ("begin", ["number"]), 2: ("end", ["number"]), 3: ("max_tokens", "number"), 4: ("then", ["number"]), 5:
    ("parameters", WITHIN)}]), 44: ("repetition_stop", {1: ("repeats", "number"), 2: ("min_period", "number"), 3:
    ("max_period", "number"), 4: ("min_length", "number"), 5: ("min_tokens", "number")}),
    45: ("banned_phrases", [{1: ("tokens", ["number"])}]),
}
