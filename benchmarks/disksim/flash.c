/*
 * Flash: units that work in parallel behind a controller, a link and a write buffer.
 *
 * Here's how it works. The controller takes commands one after the other; each takes it
 * read_command_us or write_command_us. A read is split into pages; page p is on unit p mod
 * units. A unit serves its pages one at a time, in the order of their commands. Each page goes
 * over the link when it has been read, the earliest first. The read is done latency_us after
 * its last page.
 *
 * A write waits, in order, until the buffer has room for it (a large one until it is empty),
 * passes the link, and is done. Units program the buffer's bytes in turn, program_bytes at a
 * time; a unit with a program that waits holds up the turn. Less than program_bytes stays
 * until more comes, or a flush. A unit reads first and programs when no read waits. While a
 * write waits for room, or a flush for the medium, it does them in turn. Nothing interrupts a
 * program. A flush is done when all bytes that were in the buffer before it are programmed. So
 * is a write with FUA, including its own bytes. A discard occupies only the controller, for
 * its bytes at discard_mb_s, too.
 *
 * Three things change these times. Work of the controller, the link or a unit that begins in
 * a pause takes pause_factor times as long. A program that finds the SLC cache full takes
 * slc_factor times as long. Between extra_from_s and extra_to_s, latencies are extra_us longer.
 */
#include <math.h>
#include <stdlib.h>

#include "sim.h"

enum { EVENT_READY, EVENT_BUFFERED, EVENT_UNIT };

#define NOTHING UINT64_MAX

struct page {
    struct request *request;
    uint64_t bytes;
    struct page *next;
};

/* Bytes of the buffer, counted from the first ever, that are programmed at once. */
struct program {
    uint64_t from, bytes; /* from NOTHING: there is none */
};

struct unit {
    struct page *first, **last;
    struct page *reading;
    struct program waiting, active;
    bool read_last;
};

struct flash {
    const struct params *params;
    unsigned units;
    struct unit *unit;
    int64_t controller_free;
    int64_t link_free[2]; /* reads, writes; both the first one without duplex */
    struct queue stalled, flushes; /* the second by their marks */
    uint64_t buffered;             /* bytes that are reserved or there */
    uint64_t put, taken;           /* bytes that ever came, and went to a unit's program */
    unsigned turn;
    int64_t paused_until;  /* by what was written */
    double since_pause;    /* bytes that were programmed */
    double cached;         /* bytes in the SLC cache when the last program began */
    unsigned programming;  /* units */
    int64_t programmed_at; /* the last program's end */
};

void *flash_new(const struct params *params)
{
    struct flash *flash = must(calloc(1, sizeof *flash));

    flash->params = params;
    flash->units = (unsigned)params->units;
    flash->unit = must(calloc(flash->units, sizeof *flash->unit));
    for (unsigned i = 0; i < flash->units; i++) {
        struct unit *unit = &flash->unit[i];
        unit->last = &unit->first;
        unit->waiting.from = unit->active.from = NOTHING;
    }
    queue_init(&flash->stalled);
    queue_init(&flash->flushes);
    return flash;
}

void flash_free(void *device)
{
    struct flash *flash = device;

    for (unsigned i = 0; i < flash->units; i++) {
        free(flash->unit[i].reading);
        while (flash->unit[i].first) {
            struct page *next = flash->unit[i].first->next;
            free(flash->unit[i].first);
            flash->unit[i].first = next;
        }
    }
    free(flash->unit);
    free(flash);
}

static int64_t ns(double us)
{
    return (int64_t)(us * 1000 + 0.5);
}

static bool paused(const struct flash *flash, int64_t at)
{
    const struct params *params = flash->params;

    if (at < flash->paused_until)
        return true;
    if (!(params->pause_every_s > 0))
        return false;
    int64_t every = ns(params->pause_every_s * 1e6);
    return at % every >= every - ns(params->pause_ms * 1000);
}

/* The time of work that begins at `begin`. */
static int64_t working(const struct flash *flash, int64_t begin, int64_t takes)
{
    if (!paused(flash, begin))
        return takes;
    return (int64_t)((double)takes * flash->params->pause_factor + 0.5);
}

/* The latency of a command whose work is done. */
static int64_t latency(const struct sim *sim)
{
    const struct params *params = sim->params;
    bool extra = params->extra_us > 0 && sim->now >= ns(params->extra_from_s * 1e6)
                 && sim->now < ns(params->extra_to_s * 1e6);

    return ns(params->latency_us) + (extra ? ns(params->extra_us) : 0);
}

static int64_t over_link(struct sim *sim, bool write, uint64_t bytes)
{
    struct flash *flash = sim->device;
    int64_t *link = &flash->link_free[write && flash->params->link_duplex];
    int64_t begin = *link > sim->now ? *link : sim->now;

    return *link = begin + working(flash, begin, transfer_ns(bytes, flash->params->link_mb_s));
}

static bool urgent(const struct flash *flash)
{
    return flash->stalled.first || flash->flushes.first;
}

/* Begin a program; the time that it takes. */
static int64_t begin_program(struct sim *sim, uint64_t bytes)
{
    struct flash *flash = sim->device;
    const struct params *params = flash->params;
    double us = params->program_us;

    if (params->slc_bytes > 0) {
        double idle = flash->programming ? 0 : (double)(sim->now - flash->programmed_at);
        flash->cached = fmax(0, flash->cached - idle * params->slc_empty_mb_s / 1000);
        if (flash->cached + (double)bytes > params->slc_bytes)
            us *= params->slc_factor;
        else
            flash->cached += (double)bytes;
    }
    flash->programming++;
    return working(flash, sim->now, ns(us));
}

static void end_program(struct sim *sim, uint64_t bytes)
{
    struct flash *flash = sim->device;
    const struct params *params = flash->params;

    flash->programming--;
    flash->programmed_at = sim->now;
    flash->since_pause += (double)bytes;
    if (params->pause_every_bytes > 0 && flash->since_pause >= params->pause_every_bytes) {
        flash->since_pause -= params->pause_every_bytes;
        flash->paused_until = sim->now + ns(params->pause_ms * 1000);
    }
}

/* Give an idle unit something to do, if there is anything. */
static void kick(struct sim *sim, struct unit *unit)
{
    struct flash *flash = sim->device;
    const struct params *params = flash->params;

    if (unit->reading || unit->active.from != NOTHING)
        return;
    bool program = unit->waiting.from != NOTHING
                   && (!unit->first || (urgent(flash) && unit->read_last));
    if (program) {
        unit->active = unit->waiting;
        unit->waiting.from = NOTHING;
        sim_schedule(sim, sim->now + begin_program(sim, unit->active.bytes), EVENT_UNIT, unit);
    } else if (unit->first) {
        unit->reading = unit->first;
        unit->first = unit->reading->next;
        if (!unit->first)
            unit->last = &unit->first;
        int64_t takes = working(flash, sim->now, ns(params->read_us));
        sim_schedule(sim, sim->now + takes, EVENT_UNIT, unit);
    } else {
        return;
    }
    unit->read_last = !program;
}

/* Hand the buffer's bytes to the units, in turn, while the next unit can take them. */
static void program(struct sim *sim)
{
    struct flash *flash = sim->device;
    uint64_t whole = (uint64_t)flash->params->program_bytes, wanted = 0;

    /* The last flush in the queue wants most. */
    for (const struct request *flush = flash->flushes.first; flush; flush = flush->next)
        wanted = flush->mark;
    /* A write may need the room of a part of a page, if the buffer holds no more. */
    if (flash->stalled.first && flash->buffered == flash->put - flash->taken)
        wanted = flash->put;
    while (flash->put - flash->taken >= whole || flash->taken < wanted) {
        struct unit *unit = &flash->unit[flash->turn];
        if (unit->waiting.from != NOTHING)
            break;
        uint64_t bytes = flash->put - flash->taken;
        bytes = bytes < whole ? bytes : whole;
        unit->waiting = (struct program){ flash->taken, bytes };
        flash->taken += bytes;
        flash->turn = (flash->turn + 1) % flash->units;
        kick(sim, unit);
    }
}

static void admit(struct sim *sim)
{
    struct flash *flash = sim->device;
    struct request *write;

    while ((write = flash->stalled.first)
           && (flash->buffered == 0 || (double)(flash->buffered + write->length)
               <= flash->params->buffer_bytes)) {
        queue_take(&flash->stalled);
        flash->buffered += write->length;
        sim_schedule(sim, over_link(sim, true, write->length), EVENT_BUFFERED, write);
    }
}

static void finish_flushes(struct sim *sim)
{
    struct flash *flash = sim->device;
    uint64_t least = flash->taken;

    for (unsigned i = 0; i < flash->units; i++) {
        const struct unit *unit = &flash->unit[i];
        least = unit->waiting.from < least ? unit->waiting.from : least;
        least = unit->active.from < least ? unit->active.from : least;
    }
    while (flash->flushes.first && flash->flushes.first->mark <= least)
        sim_finish(sim, queue_take(&flash->flushes), sim->now + latency(sim));
}

static void wait_for_medium(struct sim *sim, struct request *request)
{
    struct flash *flash = sim->device;

    request->mark = flash->put;
    queue_put(&flash->flushes, request);
    finish_flushes(sim);
}

static void read_pages(struct sim *sim, struct request *request)
{
    struct flash *flash = sim->device;
    uint64_t size = (uint64_t)flash->params->page_bytes;
    uint64_t end = request->offset + request->length;

    request->unit = (int)(request->offset / size % flash->units);
    request->pages = (uint32_t)((end - 1) / size - request->offset / size + 1);
    for (uint64_t at = request->offset; at < end;) {
        uint64_t number = at / size, next = (number + 1) * size < end ? (number + 1) * size : end;
        struct unit *unit = &flash->unit[number % flash->units];
        struct page *page = must(malloc(sizeof *page));
        *page = (struct page){ request, next - at, NULL };
        *unit->last = page;
        unit->last = &page->next;
        kick(sim, unit);
        at = next;
    }
}

void flash_enter(struct sim *sim, struct request *request)
{
    struct flash *flash = sim->device;
    const struct params *params = flash->params;
    int64_t begin = flash->controller_free > sim->now ? flash->controller_free : sim->now;
    int64_t takes = ns(request->op == OP_READ ? params->read_command_us : params->write_command_us);

    if (request->op == OP_DISCARD)
        takes += transfer_ns(request->length, params->discard_mb_s);
    request->start = begin;
    flash->controller_free = begin + working(flash, begin, takes);
    sim_schedule(sim, flash->controller_free, EVENT_READY, request);
}

static void unit_done(struct sim *sim, struct unit *unit)
{
    struct flash *flash = sim->device;

    if (unit->reading) {
        struct page *page = unit->reading;
        struct request *request = page->request;
        int64_t there = over_link(sim, false, page->bytes);
        unit->reading = NULL;
        free(page);
        if (--request->pages == 0)
            sim_finish(sim, request, there + latency(sim));
    } else {
        end_program(sim, unit->active.bytes);
        flash->buffered -= unit->active.bytes;
        unit->active.from = NOTHING;
        finish_flushes(sim);
        admit(sim);
    }
    kick(sim, unit);
}

void flash_event(struct sim *sim, int kind, void *what)
{
    struct flash *flash = sim->device;
    struct request *request = what;

    if (kind == EVENT_UNIT) {
        unit_done(sim, what);
    } else if (kind == EVENT_BUFFERED) {
        flash->put += request->length;
        if (request->fua)
            wait_for_medium(sim, request);
        else
            sim_finish(sim, request, sim->now + latency(sim));
    } else if (request->op == OP_READ) {
        read_pages(sim, request);
    } else if (request->op == OP_WRITE) {
        queue_put(&flash->stalled, request);
        admit(sim);
    } else if (request->op == OP_DISCARD) {
        sim_finish(sim, request, sim->now + latency(sim));
    } else {
        wait_for_medium(sim, request);
    }
    program(sim);
}
