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
    free(sim->agenda.heap);
    free(sim);
}

static bool before(const struct event *a, const struct event *b)
{
    return a->at != b->at ? a->at < b->at : a->sequence < b->sequence;
}

void agenda_add(struct agenda *agenda, int64_t at, int kind, void *what)
{
    struct event event = { at, agenda->scheduled++, kind, what };
    size_t i = agenda->events++;

    if (agenda->events > agenda->room) {
        agenda->room = agenda->room ? 2 * agenda->room : 64;
        agenda->heap = must(realloc(agenda->heap, agenda->room * sizeof *agenda->heap));
    }
    for (; i > 0 && before(&event, &agenda->heap[(i - 1) / 2]); i = (i - 1) / 2)
        agenda->heap[i] = agenda->heap[(i - 1) / 2];
    agenda->heap[i] = event;
}

struct event agenda_take(struct agenda *agenda)
{
    struct event first = agenda->heap[0], last = agenda->heap[--agenda->events];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= agenda->events)
            break;
        if (child + 1 < agenda->events && before(&agenda->heap[child + 1], &agenda->heap[child]))
            child++;
        if (!before(&agenda->heap[child], &last))
            break;
        agenda->heap[i] = agenda->heap[child];
        i = child;
    }
    agenda->heap[i] = last;
    return first;
}

int64_t agenda_next(const struct agenda *agenda)
{
    return agenda->events ? agenda->heap[0].at : NEVER;
}

void sim_schedule(struct sim *sim, int64_t at, int kind, void *what)
{
    agenda_add(&sim->agenda, at, kind, what);
}

int64_t sim_next(const struct sim *sim)
{
    return agenda_next(&sim->agenda);
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
    while (sim->agenda.events && sim_next(sim) <= now) {
        struct event event = agenda_take(&sim->agenda);
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
