"""What is generated in one RL step: how many samples, how long, in which groups."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from rlsim.schema.asynchrony import TailBatching, rounded_up, rounds_per_cycle
from rlsim.schema.base import Quantiles, Strict
from rlsim.schema.run import Nodes
from rlsim.schema.vision import Images, image_faults

MOST_STEP_SAMPLES = 2_500_000
"""Samples of a step: each takes some 10 us and 700 bytes of a simulation, so that more take minutes and gigabytes."""


class ConstantLength(Strict):
    """Every length is the same."""

    kind: Literal["constant"] = "constant"
    tokens: int = Field(ge=1, le=10_000_000)
    """Length of every sample in tokens."""


class LognormalLength(Strict):
    """Lognormal lengths, truncated at the cap with a point mass there.

    The location is solved so that the mean *after* truncation is ``mean_tokens``, as published means are.
    """

    kind: Literal["lognormal"] = "lognormal"
    mean_tokens: float = Field(ge=1, le=1e7)
    """Mean length after truncation at the cap, in tokens. At the cap or above it the mean of the lengths before they
    are cut, since no other can be."""
    log_sigma: float = Field(0.6, ge=0, le=3)
    """Standard deviation of the logarithm of the untruncated length."""
    cut_share: float | None = Field(None, gt=0, lt=1)
    """Share of the lengths that reach the cap, as logs print it (clip ratio, truncation rate): the spread is solved for
    it in place of log_sigma, for a mean after truncation."""


class QuantileLength(Quantiles):
    """Empirical inverse distribution function, linear between its points."""

    tokens: tuple[float, ...] = Field(min_length=2)
    """Length in tokens at each quantile, non-decreasing."""
    mean_tokens: float | None = Field(None, ge=1, le=1e7)
    """Where given, all lengths are scaled so that the mean after truncation is this."""


class TraceLength(Strict):
    """Lengths drawn with replacement from a file of served requests."""

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    """JSONL or CSV file; formats: Mooncake JSONL, Azure CSV, or one column of output tokens."""
    column: str | None = None
    """Column or key with output tokens; guessed for known formats."""
    mean_tokens: float | None = Field(None, ge=1, le=1e7)
    """Where given, all lengths are scaled so that the mean after truncation is this."""


Length = Annotated[ConstantLength | LognormalLength | QuantileLength | TraceLength, Field(discriminator="kind")]


def stated_mean(length: Length) -> float:
    """Mean tokens that a length states; 0 where it states none."""
    return float(length.tokens if isinstance(length, ConstantLength) else length.mean_tokens or 0.0)


MAX_TURNS = 1000
"""Turns of a trajectory at most."""


class ConstantTurns(Strict):
    """Every trajectory has as many turns."""

    kind: Literal["constant"] = "constant"
    turns: int = Field(ge=1, le=MAX_TURNS)
    """Turns of every trajectory."""


class LognormalTurns(Strict):
    """Lognormal numbers of turns, rounded, cut at ``max_turns``; the location is solved for the mean after the cut."""

    kind: Literal["lognormal"] = "lognormal"
    mean_turns: float = Field(ge=1, le=MAX_TURNS)
    """Mean turns of a trajectory after the cut at max_turns."""
    log_sigma: float = Field(0.5, ge=0, le=3)
    """Standard deviation of the logarithm before the cut."""


class QuantileTurns(Quantiles):
    """Empirical inverse distribution function, linear between its points."""

    turns: tuple[float, ...] = Field(min_length=2)
    """Turns at each quantile, non-decreasing; rounded."""


Turns = Annotated[ConstantTurns | LognormalTurns | QuantileTurns, Field(discriminator="kind")]


class ConstantTime(Strict):
    """Always as long."""

    kind: Literal["constant"] = "constant"
    seconds: float = Field(ge=0, le=1e6)
    """Seconds."""


class LognormalTime(Strict):
    """Lognormal times."""

    kind: Literal["lognormal"] = "lognormal"
    mean_s: float = Field(gt=0, le=1e6)
    """Mean in seconds."""
    log_sigma: float = Field(1.0, ge=0, le=4)
    """Standard deviation of the logarithm."""


class QuantileTime(Quantiles):
    """Empirical inverse distribution function, linear between its points."""

    seconds: tuple[float, ...] = Field(min_length=2)
    """Seconds at each quantile, non-decreasing."""


class TraceTime(Strict):
    """Times drawn with replacement from a file of measured ones."""

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    """JSONL or CSV file with one time in seconds per row."""
    column: str | None = None
    """Column or key with the seconds; guessed where there is one, or one named seconds."""


Time = Annotated[ConstantTime | LognormalTime | QuantileTime | TraceTime, Field(discriminator="kind")]


class Judge(Strict):
    """A reward model or judge on GPUs of its own, which sees every trajectory once, after its last turn."""

    gpus: int = Field(ge=1, le=1_000_000)
    """GPUs of the judge, beside cluster.num_gpus; not in the USD."""
    concurrency: int = Field(ge=1, le=1_000_000)
    """Trajectories that it judges at once; others queue."""
    trajectory_s: Time
    """Time to judge one trajectory."""


class Replay(Strict):
    """Trajectories of a file, taken as they are."""

    kind: Literal["trace"] = "trace"
    path: str = Field(min_length=1)
    """CSV with a row for each turn, as rlsim traces writes it: prompt, trajectory, prompt_tokens, response_tokens,
    observation_tokens, environment_s."""


class Agent(Strict):
    """Trajectories of several turns: the policy generates, the environment answers, the policy generates...

    The environment works after every turn but the last, whose reward takes ``workload.environment_s``. The policy
    generates ``workload.response_tokens`` in each turn.
    """

    turns: Turns = ConstantTurns(turns=1)
    """Turns of a trajectory."""
    max_turns: int = Field(MAX_TURNS, ge=1, le=MAX_TURNS)
    """Turns after which a trajectory ends."""
    observation_tokens: Length = ConstantLength(tokens=1)
    """Tokens that the environment answers to a turn: the next prompt is longer by them and by the turn."""
    environment_s: Time = ConstantTime(seconds=0.0)
    """Time that the environment works after a turn."""
    environment_group_correlation: float = Field(0.0, ge=0, le=1)
    """Share of the variance of log environment time common to all trajectories of a prompt."""
    environment_trajectory_correlation: float = Field(0.0, ge=0, le=1)
    """Share common to all turns of a trajectory, beside its prompt's."""
    turns_group_correlation: float | None = Field(None, ge=0, le=1)
    """Share of the variance of log turns common to all trajectories of a prompt; default workload.group_correlation."""
    response_trajectory_correlation: float = Field(0.0, ge=0, le=1)
    """Share of the variance of log turn length common to all turns of a trajectory, beside its prompt's."""
    turns_length_correlation: float = Field(0.0, ge=-1, le=1)
    """Correlation of the turns and the length of turns that a prompt's trajectories share: hard prompts have more."""
    environment_length_correlation: float = Field(0.0, ge=-1, le=1)
    """Correlation of the environment times and the length of turns that a prompt's trajectories share."""
    max_environments: int | None = Field(None, ge=1, le=10_000_000)
    """Turns that environments work on at once; others queue."""
    max_trajectories: int | None = Field(None, ge=1, le=10_000_000)
    """Trajectories in flight at once, each in an environment of its own from its first turn to its last; others wait to
    start. None: all."""
    nodes: Nodes | None = None
    """CPU nodes that hold a sandbox for each trajectory in flight; beside max_trajectories the lower limit holds."""
    start_s: Time = ConstantTime(seconds=0.0)
    """Time that a sandbox takes to start, in its place, before the first turn of its trajectory."""
    started_sandboxes: int = Field(0, ge=0, le=10_000_000)
    """Sandboxes that are started before anybody needs them: a trajectory takes the one that is ready first and has
    another started. They take places of the nodes."""
    call_failure_share: float = Field(0.0, ge=0, lt=1)
    """Share of the calls of an environment that fail after their time and are made again, with the same time."""
    call_attempts: int = Field(3, ge=1, le=100)
    """Attempts at a call; the last one never fails."""
    calls_per_s: float | None = Field(None, gt=0, le=1e6)
    """Calls that a service outside lets begin in a second, evenly spaced; others queue. None: all at once."""
    keep_prefix: bool = True
    """The context stays in the prefix cache of its replica while the environment works, as blocks that others may
    reclaim (needs engine.prefix_caching); false prefills it again every turn."""
    turn_timeout_s: float | None = Field(None, gt=0, le=1e6)
    """Time after which the environment gives a turn up and answers so."""
    trajectory_timeout_s: float | None = Field(None, gt=0, le=1e7)
    """Time from the first turn after which a trajectory ends with what it has; a turn that is being generated is
    finished."""
    failure_share: float = Field(0.0, ge=0, lt=1)
    """Share of trajectories that fail after one of their turns, each as likely, and start anew."""
    max_attempts: int = Field(3, ge=1, le=100)
    """Attempts at a trajectory; the last one never fails."""
    judge: Judge | None = None
    """Reward model or judge on GPUs of its own."""
    replay: Replay | None = None
    """Trajectories whose prompts, turns, lengths and times are taken as they are, whole prompts at random, in place of
    draws of the distributions here and of workload; those remain for what needs one, such as bounds of a search."""

    @property
    def starts(self) -> bool:
        """Whether a sandbox takes time to start."""
        return self.start_s != ConstantTime(seconds=0.0)

    @property
    def sandboxes(self) -> int | None:
        """Trajectories in flight at once, by max_trajectories and nodes; None without limit."""
        held = None if self.nodes is None else self.nodes.sandboxes - self.started_sandboxes
        return min((limit for limit in (self.max_trajectories, held) if limit is not None), default=None)

    def _problems(self) -> Iterator[str]:
        if (both := self.environment_group_correlation + self.environment_trajectory_correlation) > 1:
            keys = "environment_group_correlation + environment_trajectory_correlation"
            yield f"{keys} must not exceed 1; it is {both:g}"
        if self.replay is not None and self.failure_share:
            yield "failure_share needs drawn attempts, and replay takes trajectories as they are: give one of both"
        if self.replay is not None and self.call_failure_share:
            yield "replay takes times of calls as they were, failed ones among them: give no call_failure_share beside"
        if self.nodes is not None and self.started_sandboxes >= self.nodes.sandboxes:
            yield f"started_sandboxes ({self.started_sandboxes}) must be below the places of the nodes, which hold them"
        turns = self.turns
        if isinstance(turns, ConstantTurns) and turns.turns > self.max_turns:
            yield f"turns.turns ({turns.turns}) must not exceed max_turns ({self.max_turns})"
        if isinstance(turns, LognormalTurns) and turns.mean_turns >= self.max_turns > 1:
            yield f"turns.mean_turns ({turns.mean_turns:g}) must be below max_turns ({self.max_turns})"


class Workload(Strict):
    """The rollout batch of one RL step."""

    prompts_per_step: int = Field(ge=1, le=10_000_000)
    """Prompts in one step (prompt groups)."""
    generations_per_prompt: int = Field(ge=1, le=100_000)
    """Samples generated for each prompt (group size)."""
    prompt_tokens: Length = ConstantLength(tokens=107)
    """Prompt length. Default: OpenMathInstruct-2 with its template."""
    response_tokens: Length
    """Generated length per sample, without the prompt; with agent: of each turn."""
    max_sequence_tokens: int = Field(ge=2, le=10_000_000)
    """Cap on prompt plus response; longer responses are truncated here."""
    max_response_tokens: int | None = Field(None, ge=1, le=10_000_000)
    """Cap on the response alone, with agent on that of each turn; default: what max_sequence_tokens leaves."""
    group_correlation: float = Field(0.3, ge=0, le=1)
    """Share of the variance of log length common to the samples of a prompt. Unpublished; assumed."""
    images: Images | None = None
    """Images of prompts, whose tokens prompt_tokens holds; null: text alone."""
    routing_overlap: float | None = Field(None, ge=0, le=1)
    """Experts that positions of a sequence share when they are verified together: q of them touch as many as
    q^routing_overlap independent tokens; 1: independent, as random tokens are. Default 0.71 with a spread: 1.62 times
    the experts at q = 2 and 2.5 at q = 4 of one production model (Cohere's blog of 2026-04-21); models with shared
    experts share fewer (arXiv 2505.16056)."""
    generated_batch_factor: float = Field(1.0, ge=1, le=100)
    """Prompts generated per prompt trained on (dynamic sampling as in DAPO throws groups away)."""
    usable_group_share: float = Field(1.0, gt=0, le=1)
    """Share of prompt groups whose samples differ in reward. Below 1 a step repeats its rollout with new prompts until
    prompts_per_step groups are usable (dynamic sampling as in DAPO; synchronous loops)."""
    max_rollouts_per_step: int = Field(10, ge=1, le=1000)
    """Rollouts after which dynamic sampling gives up (NeMo-RL: grpo.dynamic_sampling_max_gen_batches)."""
    environment_s: float = Field(0.0, ge=0, le=1e6)
    """Time from the last token of a sample to its reward, in seconds."""
    batch_reward_s: float = Field(0.0, ge=0, le=1e6)
    """Time to score all samples of a step after the last of them, which nothing overlaps: a serial reward function, a
    judge that the driver calls, where they do not score samples one by one (environment_s)."""
    agent: Agent | None = None
    """Trajectories of several turns with an environment; default: single responses."""
    tail_batching: TailBatching | None = None
    """Short rounds that race for a step's batch and long rounds of the prompts that they put off (RollPacker;
    synchronous loops); default: every step awaits all of its samples."""

    @property
    def longest_response_tokens(self) -> int:
        """No response, or turn, is longer."""
        return min(self.max_sequence_tokens, self.max_response_tokens or self.max_sequence_tokens)

    @property
    def samples_per_step(self) -> int:
        """Samples trained on in one step."""
        return self.prompts_per_step * self.generations_per_prompt

    @property
    def racing(self) -> bool:
        """Whether rollouts race for their batch (tail_batching)."""
        return self.tail_batching is not None and self.tail_batching.active

    @property
    def launched_prompts(self) -> int:
        """Prompts of a rollout; with tail_batching of a short round."""
        factor = self.generated_batch_factor if self.tail_batching is None else self.tail_batching.prompts_factor
        return rounded_up(self.prompts_per_step, factor)

    @property
    def launched_generations(self) -> int:
        """Samples that a rollout starts for each prompt; with tail_batching a short round."""
        factor = 1.0 if self.tail_batching is None else self.tail_batching.samples_factor
        return rounded_up(self.generations_per_prompt, factor)

    @property
    def launch_factor(self) -> float:
        """Samples that a short round of tail_batching starts, over those trained on; 1 without."""
        if not self.racing:
            return 1.0
        return self.launched_prompts * self.launched_generations / self.samples_per_step

    @property
    def cycle_steps(self) -> int:
        """Steps of a synchronous loop that make one observation: short rounds with their long ones, else 1."""
        if not self.racing:
            return 1
        return rounds_per_cycle(self.prompts_per_step, self.launched_prompts - self.prompts_per_step)

    def _problems(self) -> Iterator[str]:
        yield from self._tail_batching()
        yield from self._bounds()

    def _tail_batching(self) -> Iterator[str]:
        if self.tail_batching is None:
            return
        for key, value, default in (
            ("agent", self.agent, None),
            ("usable_group_share", self.usable_group_share, 1.0),
            ("generated_batch_factor", self.generated_batch_factor, 1.0),
        ):
            if value != default:
                stated = "" if default is None else f" {value:g}"
                yield (
                    f"tail_batching races single responses of groups that are all usable: give no {key}{stated} beside"
                )
        if (launched := self.launched_prompts * self.launched_generations) > MOST_STEP_SAMPLES:
            most = f"{MOST_STEP_SAMPLES:,} samples in a round"
            yield f"tail_batching must not start more than {most}; it starts {launched:,}"

    def _bounds(self) -> Iterator[str]:
        if self.images is not None:
            prompt = self.prompt_tokens
            mean = prompt.tokens if isinstance(prompt, ConstantLength) else prompt.mean_tokens
            yield from image_faults(self.images, mean, self.agent is not None)
        both = self.group_correlation + (self.agent.response_trajectory_correlation if self.agent else 0.0)
        if both > 1:
            yield f"group_correlation + agent.response_trajectory_correlation must not exceed 1; it is {both:g}"
        if self.samples_per_step * self.generated_batch_factor > MOST_STEP_SAMPLES:
            yield f"prompts_per_step x generations_per_prompt must not exceed {MOST_STEP_SAMPLES:,} samples"
        # In the mean: a run that is unluckier than this is refused when its groups are drawn.
        usable = self.usable_group_share * self.generated_batch_factor * self.max_rollouts_per_step
        if usable < 1:
            yield (
                f"usable_group_share x generated_batch_factor x max_rollouts_per_step ({usable:.3g}) must be at least 1"
                ": fewer prompt groups would be usable than prompts_per_step"
            )
        if isinstance(self.prompt_tokens, ConstantLength) and self.prompt_tokens.tokens >= self.max_sequence_tokens:
            most = self.max_sequence_tokens
            yield f"prompt_tokens ({self.prompt_tokens.tokens}) must be below max_sequence_tokens ({most})"
