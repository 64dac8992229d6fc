"""
The paper's findings as claims about the miniature family, and what the paper left open: one entry per claim.

An effect is what the claim names first minus what it compares with. Published effects are differences of the published
scores of Qwen3-4B on CoSQL, in points; the place says where in MTSQL-R1 (arXiv 2510.12831) they stand. Those by turn
and hardness are read off bars, weighted by CoSQL's dev turns; the warm start there is another checkpoint than in the
main table.

The entries are kept as dense as a table, which the formatter would not.
"""

from evaluation.findings import Claim, Number, Share, Source

Terms = tuple[tuple[float, Source], ...]

FAMILY = "miniature"
LINEAGE = f"{FAMILY}/full"

_MAIN = "main table"
_ACTIONS = "ablation of actions"
_REWARDS = "ablation of rewards"
_BARS = "figure of EX by turn and hardness"
_SKILLS = "figure of long-horizon abilities"
_SAID = "said, without a figure"
_OPEN = "not reported"
_DEEP, _SHALLOW = "turns from the 4th on", "turns 1 to 3"
_HARD, _EASY = "hard and extra", "easy and medium"
_LATER = "turns with earlier ones"


def _of(policy: str, measure: str = "ex", subset: str = "all turns", at: str = "full") -> Share:
    return Share(f"{FAMILY}/{at}", policy, measure, subset)


def _at(experiment: str, subset: str = "all turns", policy: str = "grpo", measure: str = "ex") -> Share:
    return _of(policy, measure, subset, experiment)


def _sister(policy: str) -> Share:
    return Share(LINEAGE, policy, split="dev_phrasing")


def _coverage(number: int) -> Number:
    return Number(LINEAGE, f"round_{number}/selected", "coverage")


def _seconds(experiment: str) -> Number:
    return Number(f"{FAMILY}/{experiment}", "evaluation/grpo/predictions", "seconds")


def _over(after: Source, before: Source) -> Terms:
    return ((1, after), (-1, before))


def _minus(one: Terms, other: Terms) -> Terms:
    return (*one, *((-weight, source) for weight, source in other))


def _gain(after: str, before: str, measure: str = "ex", subset: str = "all turns") -> Terms:
    return _over(_of(after, measure, subset), _of(before, measure, subset))


def _lost(experiment: str, subset: str = "all turns", policy: str = "grpo", than: str = "full") -> Terms:
    """What the policy loses in an experiment that lacks something, compared with one that has it."""
    return _over(_at(experiment, subset, policy), _at(than, subset, policy))


def _rounds_lost(experiment: str, subset: str = "all turns", than: str = "full") -> Terms:
    """What two rounds lose in an experiment that is trained anew; a third would cost as much as both."""
    return _lost(experiment, subset, "round_2", than)


# The best explanations at hand; docs/experiments.md has the runs behind them.
_LITTLE_NEW = (
    "GRPO sharpens what the policy can write already. In tuning, validation, where half of the gold occurs in train, rose by "
    "up to 3 points of EX; on items whose gold nothing was trained on EX stayed where it was, and EM rose a little."
)
_FAR_FROM_PLATEAU = (
    "The warm start is not at its plateau. Right attempts at items that it solves sometimes still teach much, and SFT takes "
    "them in thousands of steps at 2e-3, where GRPO takes 90 at 3e-4: more or larger ones lose to the noise of 96 episodes."
)
_WRITES_ANEW = (
    "A model of two layers writes its SQL anew in each message where it should copy what it ran, and errs again."
)
_FEWER_MESSAGES = (
    "Each message in which this small model writes its SQL anew is a chance to err, and without a tool there are fewer. A tool "
    "that is only switched off in use is missed because the policy was trained to wait for its reply."
)
_SEES_GOLD = (
    "Short-horizon SFT is trained on gold of 3,000 items that the base has not read; the agent and direct RL learn only from "
    "what they solve themselves. A pretrained model knows most of that SQL before, so there gold adds less."
)

_KEEPS_SHORT = (
    "Of easy items the rounds keep trajectories with at most two calls (the paper's own rule), which leave little room for a "
    "correction; that this is the cause was not tested."
)
_ALIKE = (
    "Of sixteen samples of a solved item 7.6 are right, in 2.2 wordings, so the strategies keep the same trajectories in eight or "
    "nine of ten cases. And two rounds of 600 items hardly move the base policy (EX 20.3, 19.5 and 22.9 % against 21.5, 19.2 and "
    "21.7 %): there is little in which selections could differ."
)

COVERAGE = "Coverage"
_coverage_rises = [
    Claim("coverage-2", COVERAGE, "Round 2 solves train items that round 1 did not (it cannot lose any).",
          _over(_coverage(2), _coverage(1)), 1, 11.8, "Table 9: 67.6 to 79.4 % of the items"),
    Claim("coverage-3", COVERAGE, "Round 3 solves train items that rounds 1 and 2 did not (it cannot lose any).",
          _over(_coverage(3), _coverage(2)), 1, 1.6, "Table 9: 79.4 to 80.9 % of the items"),
]  # fmt: skip

WARM_START = "Warm start"
_warm_start = [
    Claim("warm-start", WARM_START, "The warm start is better than the untrained agent.",
          _gain("round_3", "base"), 1, 14.9, f"{_MAIN}: 60.3 to 75.2"),
    Claim("warm-start-interactions", WARM_START, "The warm start gets more whole interactions right.",
          _gain("round_3", "base", "interaction_ex"), 1, None, _OPEN),
    Claim("round-1", WARM_START, "EX rises with round 1.", _gain("round_1", "base"), 1, 13.6, f"{_MAIN}: 60.3 to 73.9"),
    Claim("round-2", WARM_START, "EX rises with round 2.",
          _gain("round_2", "round_1"), 1, 0.8, f"{_MAIN}: 73.9 to 74.7"),
    Claim("round-3", WARM_START, "EX rises with round 3.",
          _gain("round_3", "round_2"), 1, 0.5, f"{_MAIN}: 74.7 to 75.2"),
]  # fmt: skip

GRPO = "GRPO"
_grpo = [
    Claim("grpo", GRPO, "GRPO adds EX to the warm start.",
          _gain("grpo", "round_3"), 1, 4.7, f"{_MAIN}: 75.2 to 79.9", otherwise=_LITTLE_NEW),
    Claim("grpo-interactions", GRPO, "GRPO gets more whole interactions right.",
          _gain("grpo", "round_3", "interaction_ex"), 1, None, _OPEN),
    Claim("grpo-em", GRPO, "GRPO adds EM to the warm start.",
          _gain("grpo", "round_3", "em"), 1, 2.2, f"{_MAIN}, EM: 63.0 to 65.2"),
    Claim("grpo-deep", GRPO, "GRPO adds more on deep turns (from the 4th on) than on the others.",
          _minus(_gain("grpo", "round_3", subset=_DEEP), _gain("grpo", "round_3", subset=_SHALLOW)),
          1, 2.0, f"{_BARS}: 4.3 on 185 deep turns, 2.3 on the others"),
    Claim("grpo-hard", GRPO, "GRPO adds more on hard and extra-hard items than on the others.",
          _minus(_gain("grpo", "round_3", subset=_HARD), _gain("grpo", "round_3", subset=_EASY)),
          1, 2.9, f"{_BARS}: 4.8 on hard and extra, 1.9 on the others"),
]  # fmt: skip

CONTROLS = "Over the controls"
_controls = [
    Claim("warm-start-control", CONTROLS, "The warm start gains over as much more training on the base's own data.",
          _gain("round_3", "control_sft"), 1, None, _OPEN),
    Claim("warm-start-control-interactions", CONTROLS, "The warm start gains over that control in whole interactions.",
          _gain("round_3", "control_sft", "interaction_ex"), 1, None, _OPEN),
    Claim("grpo-control", CONTROLS, "GRPO gains over as much SFT on right attempts at the same items.",
          _gain("grpo", "control_grpo"), 1, None, _OPEN, otherwise=_FAR_FROM_PLATEAU),
    Claim("grpo-control-interactions", CONTROLS, "GRPO gains over that control in whole interactions.",
          _gain("grpo", "control_grpo", "interaction_ex"), 1, None, _OPEN),
]  # fmt: skip

TOOLS = "Tools"
_tools = [
    Claim("without-execute", TOOLS, "Two rounds without the execute tool end lower than two with it.",
          _rounds_lost("without-execute"), -1, -5.3,
          f"{_ACTIONS}: 79.9 to 74.6; whether it was trained without is not said", otherwise=_FEWER_MESSAGES),
    Claim("without-execute-in-use", TOOLS, "With the execute tool switched off where it is used, the agent is worse.",
          _lost("without-execute-in-use"), -1, -5.3, f"{_ACTIONS}: the same figure"),
    Claim("without-memory", TOOLS, "Two rounds without the memory tool end lower than two with it.",
          _rounds_lost("without-memory"), -1, -2.1,
          f"{_ACTIONS}: 79.9 to 77.8; whether it was trained without is not said", otherwise=_FEWER_MESSAGES),
    Claim("without-memory-in-use", TOOLS, "With the memory tool switched off where it is used, the agent is worse.",
          _lost("without-memory-in-use"), -1, -2.1, f"{_ACTIONS}: the same figure"),
    Claim("without-memory-deep", TOOLS, "Two rounds without the memory tool lose most on deep turns.",
          _minus(_rounds_lost("without-memory", _DEEP), _rounds_lost("without-memory", _SHALLOW)), -1, None, _OPEN),
    Claim("without-memory-in-use-deep", TOOLS, "With the memory tool switched off, it loses most on deep turns.",
          _minus(_lost("without-memory-in-use", _DEEP), _lost("without-memory-in-use", _SHALLOW)), -1, None, _OPEN),
]  # fmt: skip

CORRECTION = "Self-correction"
_correction = [
    Claim("mended-warm-start", CORRECTION, "After the warm start the final SQL is better than the first proposal.",
          _over(_of("round_3"), _of("round_3", "first_ex")), 1, None, _OPEN, otherwise=_WRITES_ANEW),
    Claim("mended-grpo", CORRECTION, "After GRPO the final SQL is better than the first proposal.",
          _over(_of("grpo"), _of("grpo", "first_ex")), 1, None, _OPEN, otherwise=_WRITES_ANEW),
]  # fmt: skip

REWARDS = "Rewards"
_rewards = [
    Claim("process-reward", REWARDS, "Process and outcome reward are better than outcome reward alone.",
          _over(_of("grpo"), _at("outcome-only")), 1, 0.8, f"{_REWARDS}: 79.1 to 79.9"),
    Claim("verify-parts", REWARDS, "Paying for verdicts besides the outcome helps EX.",
          _over(_at("without-propose-part"), _at("outcome-only")), 1, 0.6, f"{_REWARDS}: 79.1 to 79.7"),
    Claim("propose-part", REWARDS, "Paying for proposals besides the outcome helps EM.",
          _over(_at("without-verify-parts", measure="em"), _at("outcome-only", measure="em")),
          1, 0.9, f"{_REWARDS}, EM: 64.5 to 65.4"),
]  # fmt: skip

SHORT_HORIZON = "Short horizon"
_short_horizon = [
    Claim("short-sft-em", SHORT_HORIZON, "Short-horizon SFT is good in EM: better than the long-horizon warm start.",
          _gain("short_horizon_sft", "round_3", "em"), 1, 1.8, f"{_MAIN}, EM: 63.0 to 64.8"),
    Claim("short-sft-ex", SHORT_HORIZON, "Short-horizon SFT has lower EX than the long-horizon agent.",
          _gain("short_horizon_sft", "grpo"), -1, -6.8, f"{_MAIN}: 73.1 against 79.9", otherwise=_SEES_GOLD),
    Claim("direct-rl-over-sft", SHORT_HORIZON, "Direct RL is better than short-horizon SFT.",
          _gain("short_horizon_grpo", "short_horizon_sft"), 1, 2.1, f"{_MAIN}: 73.1 to 75.2", otherwise=_SEES_GOLD),
    Claim("direct-rl-under-agent", SHORT_HORIZON, "Direct RL is worse than the long-horizon agent.",
          _gain("short_horizon_grpo", "grpo"), -1, -4.7, f"{_MAIN}: 75.2 against 79.9"),
]  # fmt: skip

PRIOR = "Predicted prior"
_prior_long, _prior_short = (
    _over(_at("predicted-prior", policy=policy), _of(policy)) for policy in ("grpo", "short_horizon_grpo")
)
_prior = [
    Claim("predicted-prior", PRIOR, "Its own SQL for the earlier turns costs the long-horizon agent EX.",
          _prior_long, -1, -3.4, "Table 6: 79.9 to 76.5"),
    Claim("predicted-prior-direct-rl", PRIOR, "Its own SQL for the earlier turns costs direct RL EX.",
          _prior_short, -1, -4.0, "Table 6: 75.2 to 71.2"),
    Claim("predicted-prior-less", PRIOR, "It costs the long-horizon agent less than direct RL.",
          _minus(_prior_long, _prior_short), 1, 0.6, "Table 6"),
]  # fmt: skip

SISTER = "Out of domain"
_sister_claims = [
    Claim("sister-warm-start", SISTER, "The warm start gains on the sister benchmark too.",
          _over(_sister("round_3"), _sister("base")), 1, 12.0, f"{_MAIN}, trained on SParC: 60.3 to 72.3"),
    Claim("sister-grpo", SISTER, "GRPO adds EX on the sister benchmark too.",
          _over(_sister("grpo"), _sister("round_3")), 1, 1.7, f"{_MAIN}, trained on SParC: 72.3 to 74.0"),
    Claim("sister-short-sft", SISTER, "On the sister benchmark the long-horizon agent beats short-horizon SFT.",
          _over(_sister("grpo"), _sister("short_horizon_sft")), 1, 3.8, f"{_MAIN}, trained on SParC: 70.2 to 74.0",
          otherwise=_SEES_GOLD),
]  # fmt: skip

BUDGET = "Token budget"
_budget = [
    Claim("small-budget", BUDGET, "A smaller token budget costs EX.",
          _lost("small-budget"), -1, -2.9, "efficiency: 79.9 with 8,000 tokens, 77.0 with 4,000"),
    Claim("small-budget-tokens", BUDGET, "A smaller token budget saves tokens, per turn.",
          _over(_at("small-budget", measure="tokens"), _of("grpo", "tokens")), -1, None, _OPEN, "tokens"),
    Claim("small-budget-seconds", BUDGET, "A smaller token budget saves time, for the whole of dev.",
          _over(_seconds("small-budget"), _seconds("full")), -1, None,
          "efficiency: 28.3 to 15.6 s, on another machine", "seconds"),
]  # fmt: skip

ABILITIES = "Abilities"
_abilities = [
    Claim("calls-execute", ABILITIES, "Training makes the agent run its SQL in more turns.",
          _gain("grpo", "base", "called_execute"), 1, 13, f"{_SKILLS}: 0.85 to 0.98"),
    Claim("calls-memory", ABILITIES, "Training makes the agent look at its memory in more of the later turns.",
          _gain("grpo", "base", "called_memory", _LATER), 1, 8, f"{_SKILLS}: 0.90 to 0.98"),
    Claim("e-verify", ABILITIES, "Training earns more of the reward for verdicts on executions (none given: 0).",
          _gain("grpo", "base", "reward_e_verify"), 1, 13, f"{_SKILLS}: 0.80 to 0.93"),
    Claim("m-verify", ABILITIES, "Training earns more of the reward for verdicts on coherence (F1 of the SQL that passes).",
          _gain("grpo", "base", "reward_m_verify", _LATER), 1, 19, f"{_SKILLS}: 0.64 to 0.83"),
    Claim("e-verdicts", ABILITIES, "Training makes verdicts on executions right more often, among those given.",
          _gain("grpo", "base", "e_verdict_accuracy"), 1, None, _OPEN),
    Claim("m-verdicts", ABILITIES, "Training makes verdicts on coherence right more often, among those given (nearly all of them are pass).",
          _gain("grpo", "base", "m_verdict_accuracy", _LATER), 1, None, _OPEN),
    Claim("proposes", ABILITIES, "Training makes executed SQL more like gold, clause by clause.",
          _gain("grpo", "base", "reward_propose"), 1, 26, f"{_SKILLS}, generate and correct: 0.49 to 0.75"),
    Claim("corrects", ABILITIES, "Training makes the agent correct itself in more turns.",
          _gain("grpo", "base", "corrected"), 1, None, _OPEN, otherwise=_KEEPS_SHORT),
]  # fmt: skip

ERRORS = "Errors"
_errors = [
    Claim(f"errors-{name}", ERRORS, f"Training makes errors of {words} rarer, in shares of all turns.",
          _gain("grpo", "base", f"error_{name.replace('-', '_')}"), -1, None, _SAID)
    for name, words in (
        ("execution", "execution"),
        ("constraint-coherence", "constraint coherence"),
        ("schema-linking", "schema linking"),
        ("join-path", "join paths"),
        ("aggregation-drift", "aggregation drift"),
    )
]  # fmt: skip
_errors.append(
    Claim("errors-aggregation-drift-least", ERRORS, "Aggregation drift falls least: its share of wrong answers grows.",
          _gain("grpo", "base", "error_aggregation_drift", "wrong answers"), 1, None, _SAID)
)  # fmt: skip

LEFT_OPEN = "What the paper did not report"
_left_open = [
    Claim("rl-from-base", LEFT_OPEN, "Long-horizon RL from the base policy, without warm start, gains over it.",
          _over(_at("without-warm-start"), _of("base")), 1, None, _OPEN, otherwise=_LITTLE_NEW),
    Claim("rl-needs-warm-start", LEFT_OPEN, "Long-horizon RL without warm start is worse than with it.",
          _lost("without-warm-start"), -1, None, _OPEN),
    Claim("random-selection", LEFT_OPEN, "Random instead of difficulty-aware selection makes two rounds worse.",
          _rounds_lost("random-selection", than="sixteen-samples"), -1, None, _OPEN, otherwise=_ALIKE),
    Claim("unclustered", LEFT_OPEN, "Selection without clusters makes two rounds worse.",
          _rounds_lost("unclustered", than="sixteen-samples"), -1, None, _OPEN, otherwise=_ALIKE),
    Claim("sft-from-base", LEFT_OPEN, "Two rounds of SFT that start from the base policy each are worse than going on.",
          _rounds_lost("sft-from-base"), -1, None, _OPEN),
    Claim("equal-weights", LEFT_OPEN, "Equal weights of all parts of the reward are worse than 1, 1, 0.8, 0.1 and 0.1.",
          _lost("equal-weights"), -1, None, _OPEN),
]  # fmt: skip

CLAIMS: tuple[Claim, ...] = (
    *(*_coverage_rises, *_warm_start, *_grpo, *_controls, *_tools, *_correction, *_rewards, *_short_horizon),
    *(*_prior, *_sister_claims, *_budget, *_abilities, *_errors, *_left_open),
)  # fmt: skip
