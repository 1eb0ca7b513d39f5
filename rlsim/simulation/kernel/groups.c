/* Prompt groups on a pool: as many start as the caller allows, the next ones in the places of those that are done. The
 * rules that allow it are the caller's; Groups of engines.py is the same. */
#include "agents.h"

/* Groups are numbered in the order in which they start, and so are the samples of all groups.
 *
 * The caller's: released groups may have started by now, as long as fewer than max_in_flight are started and not done and
 * fewer than max_done are done; `unit` of them start together, counted from 0. A group is done reward_s after its last
 * token. paused: the pool does not count as busy.
 * What has happened: `started` groups have, `in_flight` of them are not done, `running` generate; unfinished: samples of
 * each that still run. ended, ended_s: groups in the order of their last tokens, and when these were; the first num_done
 * are done. starts, starts_s: first of the groups that started together, and when. finish_s: of each sample. */
typedef struct {
    Pool *pool;
    Agents *agents;
    int64_t group_size, released, max_in_flight, max_done, unit, paused;
    int64_t started, in_flight, running, num_ended, num_done, num_starts;
    double reward_s, busy_s, busy_since_s;
    int64_t *unfinished, *ended, *starts;
    double *ended_s, *starts_s, *finish_s;
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
    if (!--groups->running && !groups->paused)
        groups->busy_s += time_s - groups->busy_since_s;
    return true;
}

/* Start the groups that may, in order. */
EXPORT void groups_start(Groups *groups, double time_s) {
    const int64_t first = groups->started, unit = groups->unit, places = groups->max_in_flight - groups->in_flight;
    if (first >= groups->released || places <= 0 || groups->num_done >= groups->max_done)
        return; /* what most groups that are done come to */
    const int64_t begun = (unit - first % unit) % unit; /* what is left of a unit, and others whole */
    int64_t count = places > begun ? begun + (places - begun) / unit * unit : places;
    count = count < groups->released - first ? count : groups->released - first;
    if (!count)
        return;
    if (!groups->running)
        groups->busy_since_s = time_s;
    groups->starts[groups->num_starts] = first;
    groups->starts_s[groups->num_starts++] = time_s;
    groups->started += count;
    groups->in_flight += count;
    groups->running += count;
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

/* Let the engines begin what they begin at a time, without anything being done by it. */
EXPORT void groups_settle(Groups *groups, double time_s) {
    while (run_pool(groups, time_s))
        ;
}

/* When the next of the groups that have their last tokens is done. */
static double due_s(const Groups *groups) {
    return groups->num_done < groups->num_ended ? groups->ended_s[groups->num_done] + groups->reward_s : INFINITY;
}

/* Run until a time, or until `count` more of the groups from `first` on, before `last`, are done. */
EXPORT void groups_run(Groups *groups, double until_s, int64_t count, int64_t first, int64_t last) {
    while (count > 0 && groups->pool->infeasible == NONE) {
        double stop_s = due_s(groups) < until_s ? due_s(groups) : until_s;
        while (run_pool(groups, stop_s)) {
            const double ended_s = groups->ended_s[groups->num_ended - 1] + groups->reward_s;
            stop_s = ended_s < stop_s ? ended_s : stop_s;
        }
        const double now_s = due_s(groups);
        if (groups->num_done == groups->num_ended || now_s > until_s)
            return;
        while (groups->num_done < groups->num_ended && due_s(groups) <= now_s) {
            const int64_t group = groups->ended[groups->num_done++];
            count -= group >= first && group < last;
            groups->in_flight--;
            groups_start(groups, now_s);
        }
    }
}

/* Abort a group: what is running of it leaves with the next pause that cancels. How many samples those were. */
EXPORT int64_t groups_cancel(Groups *groups, int64_t group) {
    const int64_t left = groups->unfinished[group];
    groups->unfinished[group] = 0;
    groups->running--;
    groups->in_flight--;
    pool_cancel(groups->pool, (int32_t)(group * groups->group_size), (int32_t)groups->group_size);
    return left;
}

EXPORT void groups_pause(Groups *groups, double time_s, double duration_s, int64_t action) {
    pool_pause(groups->pool, time_s, duration_s, (Action)action);
}
