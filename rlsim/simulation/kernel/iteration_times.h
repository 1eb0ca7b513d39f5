/* Time of engine iterations; iteration_times.py has the equations. */
#ifndef RLSIM_ITERATION_TIMES_H
#define RLSIM_ITERATION_TIMES_H

#include <stdint.h>

/* Tables and limits of an engine. Rows of the tables: decoding sequences, 0 .. max_sequences.
 *
 * step_s: one value a row. attention_s, integral: knots values a row. prefill_s: one for each value of grid_tokens.
 * context_s, context_integral: knots values, of prefill behind a context. */
typedef struct {
    const double *step_s, *attention_s, *integral, *prefill_s, *grid_tokens, *context_s, *context_integral;
    double inverse_knot, kv_capacity_tokens;
    int64_t knots, grid, tokens_per_sequence, max_batched_tokens, max_sequences, chunked_prefill;
} IterationTimes;

/* Iterations and the seconds they take. */
typedef struct {
    int64_t iterations;
    double seconds;
} Segment;

/* Every product and sum stands in the order of iteration_times.py: equal bits need equal order. */

/* Seconds of one iteration with n > 0 decoding sequences at a mean context in tokens. */
static inline double decode_s(const IterationTimes *timing, int64_t n, double mean_context) {
    const double *attention = timing->attention_s + n * timing->knots;
    const double x = mean_context * timing->inverse_knot;
    int64_t i = (int64_t)x;
    if (i > timing->knots - 2)
        i = timing->knots - 2;
    return timing->step_s[n] + attention[i] + (x - (double)i) * (attention[i + 1] - attention[i]);
}

/* Antiderivative of attention over context, at x knots. */
static inline double antiderivative(const IterationTimes *timing, int64_t n, double x) {
    const double *attention = timing->attention_s + n * timing->knots;
    /* Half an iteration before the first context may lie below 0: the first piece goes on there. */
    int64_t i = x > 0 ? (int64_t)x : 0;
    if (i > timing->knots - 2)
        i = timing->knots - 2;
    const double t = x - (double)i, a = attention[i];
    return timing->integral[n * timing->knots + i] + t * (a + 0.5 * t * (attention[i + 1] - a));
}

/* Seconds of iterations with n sequences whose mean context grows by growth in each. */
static inline double segment_s(const IterationTimes *timing, int64_t n, double mean_context, double growth, int64_t iterations) {
    const double start = (mean_context - 0.5 * growth) * timing->inverse_knot;
    const double end = start + (double)iterations * growth * timing->inverse_knot;
    const double area = antiderivative(timing, n, end) - antiderivative(timing, n, start);
    return (double)iterations * timing->step_s[n] + area / (growth * timing->inverse_knot);
}

/* Fewest iterations of a segment that take time_s or more. most: iterations known to take at least that long.
 *
 * Interpolates, tries the neighbour, then halves: four evaluations or so, as the sum is nearly linear. */
static inline Segment iterations_until(const IterationTimes *timing, double time_s, int64_t n, double mean_context, double growth,
                         Segment most) {
    Segment low = {0, 0.0}, high = most;
    int64_t middle = 0;
    for (int trial = 0; high.iterations - low.iterations > 1; trial++) {
        const int64_t between = high.iterations - low.iterations;
        if (trial % 3 == 0)
            middle = low.iterations
                     + (int64_t)((time_s - low.seconds) / (high.seconds - low.seconds) * (double)between);
        else if (trial % 3 == 1)
            middle = middle == high.iterations ? high.iterations - 1 : low.iterations + 1;
        else
            middle = (low.iterations + high.iterations) / 2;
        if (middle < low.iterations + 1)
            middle = low.iterations + 1;
        if (middle > high.iterations - 1)
            middle = high.iterations - 1;
        const Segment tried = {middle, segment_s(timing, n, mean_context, growth, middle)};
        if (tried.seconds >= time_s)
            high = tried;
        else
            low = tried;
    }
    return high;
}

/* Seconds that prefill tokens add to an iteration with n decoding sequences. */
static inline double prefill_s(const IterationTimes *timing, int64_t n, int64_t tokens) {
    const double *row = timing->prefill_s + n * timing->grid, *grid = timing->grid_tokens;
    const double q = (double)tokens;
    if (timing->grid == 1 || q <= grid[0])
        return row[0];
    int64_t i = 0;
    while (i < timing->grid - 2 && grid[i + 1] <= q)
        i++;
    return row[i] + (row[i + 1] - row[i]) * (q - grid[i]) / (grid[i + 1] - grid[i]);
}

/* Seconds that the first tokens of a sequence take to prefill beyond those of prefill_s. */
static inline double behind_s(const IterationTimes *timing, int64_t tokens) {
    const double x = (double)tokens * timing->inverse_knot;
    int64_t i = (int64_t)x;
    if (i > timing->knots - 2)
        i = timing->knots - 2;
    const double t = x - (double)i, a = timing->context_s[i];
    return timing->context_integral[i] + t * (a + 0.5 * t * (timing->context_s[i + 1] - a));
}

#endif
