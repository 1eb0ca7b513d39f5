/* Which prompt groups may start, which are in flight, which are done; the rules of generator.py. */
#include <stdlib.h>

#include "agents.h"

/* What the caller knows of the loop, and what it wants to know. Groups are numbered in the order in which they start,
 * `batch` of them for each of the steps, and so are the samples of all groups. The caller's part of the rules is in
 * intake.py.
 *
 * usable: groups of a batch that are trained on. started_s, ready_s: by batch, infinite before. started_version: of
 * each group. done_groups, cancelled_groups: in the order in which they are. times_s, running_at: unfinished samples after
 * every change, or NULL. */
typedef struct {
    int64_t steps, batch, usable, group_size, max_in_flight, whole_batches;
    double environment_s;
    double *started_s, *ready_s;
    int64_t *started_version, *done_groups, *cancelled_groups;
    double *times_s, *running_at;
} Loop;

/* A group whose samples have all finished, and when its rewards are known. */
typedef struct {
    double time_s;
    int64_t group;
} Scored;

/* unfinished, open_groups: samples of each group, groups of each batch that are not done. scoring: groups in the order
 * of their last samples, of which num_done have their rewards and looked_at were looked at by the trainer. Groups start
 * in order: next_group is the next one, released_groups may have started; all before first_open are done. */
typedef struct {
    Pool *pool;
    Agents *agents;
    Loop loop;
    int64_t *unfinished, *open_groups;
    Scored *scoring;
    int64_t num_scoring, num_done, looked_at, next_group, released_groups, first_open, in_flight, running, version;
    int64_t num_cancelled, num_changes;
    bool blocked, paused;
    double busy_s, busy_since_s, last_done_s;
} Generator;

static void change_running(Generator *generator, double now_s, int64_t change) {
    generator->running += change;
    if (generator->loop.times_s) {
        generator->loop.times_s[generator->num_changes] = now_s;
        generator->loop.running_at[generator->num_changes] = (double)generator->running;
        generator->num_changes++;
    }
}

/* Start released groups in order, as many as may be in flight. */
static void start_groups(Generator *generator, double now_s) {
    const Loop *loop = &generator->loop;
    const int64_t first = generator->next_group, limit = loop->max_in_flight;
    while (generator->next_group < generator->released_groups && generator->in_flight < limit && !generator->blocked) {
        const int64_t group = generator->next_group, batch = group / loop->batch;
        if (loop->whole_batches && group % loop->batch == 0 && generator->in_flight + loop->batch > limit)
            break;
        generator->next_group++;
        if (now_s < loop->started_s[batch])
            loop->started_s[batch] = now_s;
        loop->started_version[group] = generator->version;
        generator->unfinished[group] = loop->group_size;
        generator->in_flight++;
    }
    const int64_t samples = (generator->next_group - first) * loop->group_size;
    if (!samples)
        return;
    if (!generator->running)
        generator->busy_since_s = now_s;
    change_running(generator, now_s, samples);
    if (generator->agents)
        agents_submit(generator->agents, now_s, (int32_t)(first * loop->group_size), (int32_t)samples);
    else
        pool_submit(generator->pool, now_s, (int32_t)(first * loop->group_size), (int32_t)samples);
}

/* A sample has its last token; with the last one of its group the group goes to its rewards. */
static bool finish(void *owner, double time_s, int32_t sample, int32_t replica) {
    Generator *generator = owner;
    const int64_t group = sample / generator->loop.group_size;
    (void)replica;
    if (!generator->unfinished[group])
        return false; /* cancelled while its last iteration was in progress */
    change_running(generator, time_s, -1);
    if (!generator->running && !generator->paused)
        generator->busy_s += time_s - generator->busy_since_s;
    if (--generator->unfinished[group])
        return false;
    generator->scoring[generator->num_scoring++] = (Scored){time_s + generator->loop.environment_s, group};
    return true;
}

/* The next group in scoring is done and with it perhaps its batch; its place goes to the next group. */
static void complete(Generator *generator) {
    const Scored scored = generator->scoring[generator->num_done];
    const int64_t batch = scored.group / generator->loop.batch;
    generator->loop.done_groups[generator->num_done++] = scored.group;
    generator->in_flight--;
    generator->last_done_s = scored.time_s;
    if (!--generator->open_groups[batch])
        generator->loop.ready_s[batch] = scored.time_s;
    start_groups(generator, scored.time_s);
}

/* When the next group in scoring has its rewards; infinite where none is. */
static double next_reward(const Generator *generator) {
    return generator->num_done < generator->num_scoring ? generator->scoring[generator->num_done].time_s : INFINITY;
}

/* Run the pool, or the trajectories on it, until a time; whether a group has gone to its rewards. */
static bool run_pool(Generator *generator, double until_s) {
    if (generator->agents)
        return agents_run(generator->agents, until_s, finish, generator);
    return pool_run(generator->pool, until_s, finish, generator);
}

/* Run the pool until a group has its rewards; that time, or limit_s where none has before. */
static double run_to(Generator *generator, double limit_s) {
    for (;;) {
        const double reward_s = next_reward(generator), until_s = reward_s < limit_s ? reward_s : limit_s;
        if (!run_pool(generator, until_s))
            return until_s;
    }
}

/* Book everything up to now. */
EXPORT void generator_advance(Generator *generator, double now_s) {
    for (;;) {
        const double when_s = run_to(generator, now_s);
        if (next_reward(generator) > now_s)
            return;
        while (next_reward(generator) <= when_s)
            complete(generator);
    }
}

/* Run on to the next groups that are done; false where nobody generates any. */
static bool advance_to_reward(Generator *generator) {
    const double when_s = run_to(generator, INFINITY);
    if (when_s == INFINITY)
        return false;
    generator_advance(generator, when_s);
    return true;
}

/* Run until all groups started for a step are done; when they were, infinite where they never will be. */
EXPORT double generator_batch_ready(Generator *generator, double now_s, int64_t step) {
    generator_advance(generator, now_s);
    while (generator->open_groups[step])
        if (!advance_to_reward(generator))
            return INFINITY;
    return now_s > generator->loop.ready_s[step] ? now_s : generator->loop.ready_s[step];
}

/* Run until as many usable groups of oldest_version or later are done as a step takes, those first that are done first;
 * when they were, infinite where they never will be. Another group may start in place of each that nobody wants. */
EXPORT double generator_first_done(Generator *generator, double now_s, int64_t oldest_version) {
    const Loop *loop = &generator->loop;
    generator_advance(generator, now_s);
    for (int64_t wanted = loop->usable; wanted;) {
        if (generator->looked_at == generator->num_done) {
            if (!advance_to_reward(generator))
                return INFINITY;
            if (now_s < generator->last_done_s)
                now_s = generator->last_done_s;
            continue;
        }
        const int64_t group = generator->scoring[generator->looked_at++].group;
        if (group % loop->batch < loop->usable && loop->started_version[group] >= oldest_version) {
            wanted--;
        } else if (generator->released_groups < loop->steps * loop->batch) {
            generator->released_groups++;
            start_groups(generator, now_s);
        }
    }
    return now_s;
}

/* Groups that may have started by now. */
EXPORT int64_t generator_released(const Generator *generator) { return generator->released_groups; }

EXPORT int64_t generator_looked_at(const Generator *generator) { return generator->looked_at; }

/* Whether all groups have started that there are. */
EXPORT int64_t generator_is_exhausted(const Generator *generator) {
    return generator->next_group == generator->loop.steps * generator->loop.batch;
}

/* No more groups start; run until none is in flight. When that is, infinite where it never will be. */
EXPORT double generator_drain(Generator *generator, double now_s) {
    generator_advance(generator, now_s);
    generator->blocked = true;
    if (!generator->in_flight)
        return now_s;
    while (generator->in_flight)
        if (!advance_to_reward(generator))
            return INFINITY;
    return generator->last_done_s;
}

/* Seconds so far in which the pool had samples to generate and was not paused. */
EXPORT double generator_busy_s(Generator *generator, double now_s) {
    generator_advance(generator, now_s);
    const bool busy = generator->running && !generator->paused;
    return generator->busy_s + (busy ? now_s - generator->busy_since_s : 0.0);
}

/* Stop the pool for duration_s, each replica after its iteration in progress; no more groups start. */
EXPORT void generator_pause(Generator *generator, double now_s, double duration_s) {
    generator->busy_s = generator_busy_s(generator, now_s);
    generator->paused = generator->blocked = true;
    pool_pause(generator->pool, now_s, duration_s, KEEP);
}

/* Go on after a pause, with as many new versions of the weights. */
EXPORT void generator_resume(Generator *generator, double now_s, int64_t versions) {
    generator_advance(generator, now_s);
    generator->blocked = generator->paused = false;
    generator->busy_since_s = now_s;
    generator->version += versions;
}

/* Abort the groups in flight that started before oldest_version; how many were aborted so far. */
EXPORT int64_t generator_cancel(Generator *generator, double now_s, int64_t oldest_version) {
    const int64_t size = generator->loop.group_size, before = generator->num_cancelled;
    while (generator->first_open < generator->next_group && !generator->unfinished[generator->first_open])
        generator->first_open++;
    for (int64_t group = generator->first_open; group < generator->next_group; group++) {
        if (!generator->unfinished[group] || generator->loop.started_version[group] >= oldest_version)
            continue;
        change_running(generator, now_s, -generator->unfinished[group]);
        generator->unfinished[group] = 0;
        generator->in_flight--;
        generator->loop.cancelled_groups[generator->num_cancelled++] = group;
        pool_cancel(generator->pool, (int32_t)(group * size), (int32_t)size);
    }
    if (generator->num_cancelled > before)
        pool_pause(generator->pool, now_s, 0.0, CANCEL);
    return generator->num_cancelled;
}

/* Running requests prefill what they have again or start from their prompts, delay_s after their iteration. */
EXPORT void generator_interrupt(Generator *generator, double now_s, double delay_s, int64_t restart) {
    pool_pause(generator->pool, now_s, delay_s, restart ? RESTART : RECOMPUTE);
}

/* Let groups start as long as no more than `released` have. */
EXPORT void generator_release(Generator *generator, double now_s, int64_t released) {
    generator->released_groups = released;
    start_groups(generator, now_s);
}

EXPORT int64_t generator_in_flight(const Generator *generator) { return generator->in_flight; }

/* Values of times_s and running_at so far. */
EXPORT int64_t generator_changes(const Generator *generator) { return generator->num_changes; }

EXPORT void generator_free(Generator *generator) {
    if (!generator)
        return;
    free(generator->unfinished);
    free(generator->open_groups);
    free(generator->scoring);
    free(generator);
}

/* A generator in which no group may start yet; NULL without memory. agents: the trajectories of several turns on the
 * pool, or NULL. They, the pool and what `loop` points to stay the caller's and must outlive it. */
EXPORT Generator *generator_new(Pool *pool, Agents *agents, const Loop *loop) {
    const size_t groups = (size_t)(loop->steps * loop->batch);
    Generator *generator = calloc(1, sizeof *generator);
    if (!generator)
        return NULL;
    generator->pool = pool;
    generator->agents = agents;
    generator->loop = *loop;
    generator->unfinished = calloc(groups, sizeof *generator->unfinished);
    generator->open_groups = calloc((size_t)loop->steps, sizeof *generator->open_groups);
    generator->scoring = calloc(groups, sizeof *generator->scoring);
    if (!generator->unfinished || !generator->open_groups || !generator->scoring) {
        generator_free(generator);
        return NULL;
    }
    for (int64_t step = 0; step < loop->steps; step++) {
        generator->open_groups[step] = loop->batch;
        loop->started_s[step] = loop->ready_s[step] = INFINITY;
    }
    return generator;
}
