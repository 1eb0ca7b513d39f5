/* Which prompt groups may start, which are in flight, which are done; the rules of generator.py. */
#include <stdlib.h>

#include "agents.h"

/* What the caller knows of the loop, and what it wants to know. Groups are numbered through all targets, and so are
 * samples through all groups.
 *
 * started_s, ready_s: by target, infinite before. samples_by_age: samples to be trained on by target and by versions of
 * the weights between their start and their training, lag + 1 values a target. times_s, running_at: unfinished samples
 * after every change, or NULL. */
typedef struct {
    int64_t targets, groups, trained_groups, group_size, lag, recompute_kv, whole_batches;
    double environment_s;
    double *started_s, *ready_s;
    int64_t *samples_by_age;
    double *times_s, *running_at;
} Loop;

/* A group whose samples have all finished, and when its rewards are known. */
typedef struct {
    double time_s;
    int64_t group;
} Scored;

/* unfinished, open_groups: samples of each group, groups of each target that are not done. scoring: groups in the order
 * of their last samples, of which num_done have their rewards. Groups start in order: next_group is the next one. */
typedef struct {
    Pool *pool;
    Agents *agents;
    Loop loop;
    int64_t *unfinished, *open_groups;
    Scored *scoring;
    int64_t num_scoring, num_done, next_group, released_groups, in_flight, running, version, num_changes;
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
    const int64_t first = generator->next_group, limit = loop->groups * loop->lag;
    while (generator->next_group < generator->released_groups && generator->in_flight < limit && !generator->blocked) {
        const int64_t group = generator->next_group, target = group / loop->groups;
        if (loop->whole_batches && group % loop->groups == 0 && generator->in_flight + loop->groups > limit)
            break;
        generator->next_group++;
        if (now_s < loop->started_s[target])
            loop->started_s[target] = now_s;
        if (group % loop->groups < loop->trained_groups)
            loop->samples_by_age[target * (loop->lag + 1) + target - generator->version] += loop->group_size;
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

/* Allow the groups of one more target to start. */
static void release_target(Generator *generator, int64_t target) {
    if (target < generator->loop.targets)
        generator->released_groups += generator->loop.groups;
}

/* A sample has its last token; with the last one of its group the group goes to its rewards. */
static bool finish(void *owner, double time_s, int32_t sample, int32_t replica) {
    Generator *generator = owner;
    const int64_t group = sample / generator->loop.group_size;
    (void)replica;
    change_running(generator, time_s, -1);
    if (!generator->running && !generator->paused)
        generator->busy_s += time_s - generator->busy_since_s;
    if (--generator->unfinished[group])
        return false;
    generator->scoring[generator->num_scoring++] = (Scored){time_s + generator->loop.environment_s, group};
    return true;
}

/* The next group in scoring is done and with it perhaps the batch of its target; its place goes to the next group. */
static void complete(Generator *generator) {
    const Scored scored = generator->scoring[generator->num_done++];
    const int64_t target = scored.group / generator->loop.groups;
    generator->in_flight--;
    generator->last_done_s = scored.time_s;
    if (!--generator->open_groups[target])
        generator->loop.ready_s[target] = scored.time_s;
    if (generator->next_group < generator->released_groups)
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

/* Run until the batch of a target is ready; when it was, infinite where it never will be. */
EXPORT double generator_batch_ready(Generator *generator, int64_t target) {
    while (generator->open_groups[target])
        if (!advance_to_reward(generator))
            return INFINITY;
    return generator->loop.ready_s[target];
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
    pool_pause(generator->pool, now_s, duration_s, false);
}

/* Go on with the next version of the weights, for which one more target is released. */
EXPORT void generator_publish_weights(Generator *generator, double now_s) {
    generator_advance(generator, now_s);
    generator->blocked = generator->paused = false;
    generator->busy_since_s = now_s;
    generator->version++;
    if (generator->loop.recompute_kv)
        pool_pause(generator->pool, now_s, 0.0, true);
    release_target(generator, generator->version + generator->loop.lag);
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

/* A generator that has started on the first weights at time 0; NULL without memory. agents: the trajectories of several
 * turns on the pool, or NULL. They, the pool and what `loop` points to
 * stay the caller's and must outlive it. */
EXPORT Generator *generator_new(Pool *pool, Agents *agents, const Loop *loop) {
    const size_t groups = (size_t)(loop->targets * loop->groups);
    Generator *generator = calloc(1, sizeof *generator);
    if (!generator)
        return NULL;
    generator->pool = pool;
    generator->agents = agents;
    generator->loop = *loop;
    generator->unfinished = calloc(groups, sizeof *generator->unfinished);
    generator->open_groups = calloc((size_t)loop->targets, sizeof *generator->open_groups);
    generator->scoring = calloc(groups, sizeof *generator->scoring);
    if (!generator->unfinished || !generator->open_groups || !generator->scoring) {
        generator_free(generator);
        return NULL;
    }
    for (int64_t target = 0; target < loop->targets; target++) {
        generator->open_groups[target] = loop->groups;
        loop->started_s[target] = loop->ready_s[target] = INFINITY;
    }
    for (int64_t target = 0; target <= loop->lag; target++)
        release_target(generator, target);
    start_groups(generator, 0.0);
    return generator;
}
