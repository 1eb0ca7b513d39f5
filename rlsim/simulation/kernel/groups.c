/* Prompt groups on a pool: run until one has no sample left to generate. When groups start is the caller's. */
#include "agents.h"

/* Groups are numbered in the order in which they start, and so are the samples of all groups. unfinished: samples of each
 * group that still run. ended, ended_s: groups in the order of their last samples, and when these were. finish_s: of each
 * sample. */
typedef struct {
    Pool *pool;
    Agents *agents;
    int64_t group_size, num_ended, *unfinished, *ended;
    double *ended_s, *finish_s;
} Groups;

/* A sample has its last token; whether its group ends with it. */
static bool finish(void *owner, double time_s, int32_t sample, int32_t replica) {
    Groups *groups = owner;
    const int64_t group = sample / groups->group_size;
    (void)replica;
    groups->finish_s[sample] = time_s;
    if (!groups->unfinished[group] || --groups->unfinished[group])
        return false; /* some are left, or it was cancelled while its last iteration was in progress */
    groups->ended[groups->num_ended] = group;
    groups->ended_s[groups->num_ended++] = time_s;
    return true;
}

/* Submit the samples of the groups first, first + 1, ... */
EXPORT void groups_start(Groups *groups, double time_s, int64_t first, int64_t count) {
    for (int64_t group = first; group < first + count; group++)
        groups->unfinished[group] = groups->group_size;
    const int32_t sample = (int32_t)(first * groups->group_size), samples = (int32_t)(count * groups->group_size);
    if (groups->agents)
        agents_submit(groups->agents, time_s, sample, samples);
    else
        pool_submit(groups->pool, time_s, sample, samples);
}

static bool run_pool(Groups *groups, double until_s) {
    if (groups->agents)
        return agents_run(groups->agents, until_s, finish, groups);
    return pool_run(groups->pool, until_s, finish, groups);
}

/* Run until a time, or until delay_s after a group ends, whatever is first; how many have ended so far. */
EXPORT int64_t groups_run(Groups *groups, double until_s, double delay_s) {
    while (run_pool(groups, until_s)) {
        const double due_s = groups->ended_s[groups->num_ended - 1] + delay_s;
        until_s = due_s < until_s ? due_s : until_s;
    }
    return groups->num_ended;
}

/* Abort a group: what is running of it leaves with the next pause that cancels. How many samples those were. */
EXPORT int64_t groups_cancel(Groups *groups, int64_t group) {
    const int64_t left = groups->unfinished[group];
    groups->unfinished[group] = 0;
    pool_cancel(groups->pool, (int32_t)(group * groups->group_size), (int32_t)groups->group_size);
    return left;
}

EXPORT void groups_pause(Groups *groups, double time_s, double duration_s, int64_t action) {
    pool_pause(groups->pool, time_s, duration_s, (Action)action);
}
