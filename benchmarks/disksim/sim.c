#include "sim.h"

#include <stdlib.h>

void *must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

int64_t transfer_ns(uint64_t bytes, double mb_s)
{
    return (int64_t)((double)bytes * 1000.0 / mb_s + 0.5);
}

void queue_init(struct queue *queue)
{
    queue->first = NULL;
    queue->last = &queue->first;
}

void queue_put(struct queue *queue, struct request *request)
{
    request->next = NULL;
    *queue->last = request;
    queue->last = &request->next;
}

struct request *queue_take(struct queue *queue)
{
    struct request *request = queue->first;

    if (request) {
        queue->first = request->next;
        if (!queue->first)
            queue->last = &queue->first;
        request->next = NULL;
    }
    return request;
}

struct sim *sim_new(const struct params *params)
{
    struct sim *sim = calloc(1, sizeof *sim);

    if (!sim)
        return NULL;
    sim->params = params;
    queue_init(&sim->waiting);
    queue_init(&sim->finished);
    sim->device = params->kind == KIND_HDD ? hdd_new(params) : flash_new(params);
    return sim;
}

void sim_free(struct sim *sim)
{
    if (sim->params->kind == KIND_HDD)
        hdd_free(sim->device);
    else
        flash_free(sim->device);
    free(sim->heap);
    free(sim);
}

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

void sim_schedule(struct sim *sim, int64_t at, int kind, void *what)
{
    struct event event = { at, sim->scheduled++, kind, what };
    size_t i = sim->events++;

    if (sim->events > sim->room) {
        sim->room = sim->room ? 2 * sim->room : 64;
        sim->heap = must(realloc(sim->heap, sim->room * sizeof *sim->heap));
    }
    for (; i > 0 && before(&event, &sim->heap[(i - 1) / 2]); i = (i - 1) / 2)
        sim->heap[i] = sim->heap[(i - 1) / 2];
    sim->heap[i] = event;
}

static struct event take_event(struct sim *sim)
{
    struct event first = sim->heap[0], last = sim->heap[--sim->events];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= sim->events)
            break;
        if (child + 1 < sim->events && before(&sim->heap[child + 1], &sim->heap[child]))
            child++;
        if (!before(&sim->heap[child], &last))
            break;
        sim->heap[i] = sim->heap[child];
        i = child;
    }
    sim->heap[i] = last;
    return first;
}

int64_t sim_next(const struct sim *sim)
{
    return sim->events ? sim->heap[0].at : NEVER;
}

/*
 * Let commands into the device while it has room. If flushes are exclusive, one enters an
 * empty device and nothing enters until it is done, because ATA's FLUSH CACHE is no queued
 * command. Nor is DATA SET MANAGEMENT, a discard.
 */
static void enter(struct sim *sim)
{
    const struct params *params = sim->params;
    struct request *first;

    while ((first = sim->waiting.first) && !sim->exclusive && sim->inside < params->queue_depth) {
        if ((first->op == OP_FLUSH || first->op == OP_DISCARD) && params->flush_exclusive) {
            if (sim->inside)
                break;
            sim->exclusive = true;
        }
        queue_take(&sim->waiting);
        sim->inside++;
        first->entered = sim->now;
        if (params->kind == KIND_HDD)
            hdd_enter(sim, first);
        else
            flash_enter(sim, first);
    }
}

void sim_finish(struct sim *sim, struct request *request, int64_t at)
{
    request->done = at;
    sim_schedule(sim, at, EVENT_DONE, request);
}

struct request *sim_advance(struct sim *sim, int64_t now)
{
    while (sim->events && sim->heap[0].at <= now) {
        struct event event = take_event(sim);
        sim->now = event.at;
        if (event.kind == EVENT_DONE) {
            struct request *request = event.what;
            sim->inside--;
            sim->exclusive = false;
            queue_put(&sim->finished, request);
            enter(sim);
        } else if (sim->params->kind == KIND_HDD) {
            hdd_event(sim, event.kind, event.what);
        } else {
            flash_event(sim, event.kind, event.what);
        }
    }
    if (now > sim->now)
        sim->now = now;
    struct request *finished = sim->finished.first;
    queue_init(&sim->finished);
    return finished;
}

void sim_submit(struct sim *sim, struct request *request, int64_t now)
{
    /* Requests done by now stay for the caller's next sim_advance(). */
    struct request *finished = sim_advance(sim, now);

    while (finished) {
        struct request *next = finished->next;
        queue_put(&sim->finished, finished);
        finished = next;
    }
    request->id = sim->arrived++;
    request->arrival = sim->now;
    request->start = request->done = NEVER;
    request->unit = -1;
    queue_put(&sim->waiting, request);
    enter(sim);
}
