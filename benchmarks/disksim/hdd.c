/*
 * A hard disk: one arm over one spiral.
 *
 * Here's how it works. The medium is a spiral of N revolutions, read from the outside in;
 * x is the way along the radius, 0 outside, 1 inside. Its rate falls from outer to inner in
 * proportion to x, so that byte L lies at the x that solves
 *     L = N T (Ro x - (Ro - Ri) x^2 / 2),     T: time of a revolution,
 * and R(L) = N x(L) is its place counted in revolutions. Then
 *     to read L..M takes          (R(M) - R(L)) T
 *     to go from H to L takes     seek_min + (seek_max - seek_min) sqrt |x(L) - x(H)|,
 *                                 nothing within a revolution
 *     until L comes by at time t  frac(R(L) - t / T) T.
 * The arm takes the read with the least sum of the last two (the drive's command queueing),
 * unless one has waited longer than aging_ms: then the oldest. Writes are done when they are in
 * the buffer, and go to the medium when no read waits. While the buffer is too full for a write,
 * or a flush waits, they compete with the reads by the same rule; only the queue_depth oldest
 * do. While it has nothing to do after a read, the arm reads on into a segment of the read
 * buffer. A read that a segment has whole is served from it. A read that begins in the bytes
 * that are being read on goes on there.
 */
#include <math.h>
#include <stdlib.h>

#include "sim.h"

enum { EVENT_READY, EVENT_BUFFERED, EVENT_ARM };

struct segment {
    uint64_t from, to;
};

/* Something in the write buffer. */
struct extent {
    uint64_t offset, length, number;
    double revolution;
    struct request *fua;
    struct extent *next;
};

struct hdd {
    const struct params *params;
    double revolution_ns, revolutions;
    /* The arm: busy with one of the two, or at `head` since `head_since`. */
    struct request *reading;
    struct extent *writing;
    uint64_t head;
    int64_t head_since;
    bool reads_on; /* into segment[0], since head_since */
    struct segment *segment; /* the most recent first */
    unsigned segments;
    struct queue reads, stalled, flushes;
    struct extent *dirty, **dirty_last;
    uint64_t buffered;        /* bytes in the write buffer */
    uint64_t put, fua_waits;  /* extents that were put there; FUA writes among those there */
};

void *hdd_new(const struct params *params)
{
    struct hdd *hdd = must(calloc(1, sizeof *hdd));

    hdd->params = params;
    hdd->revolution_ns = 60e9 / params->rpm;
    double mean_rate = (params->rate_outer_mb_s + params->rate_inner_mb_s) / 2 / 1000;
    hdd->revolutions = params->capacity / (hdd->revolution_ns * mean_rate);
    hdd->segment = must(calloc((size_t)params->segments, sizeof *hdd->segment));
    queue_init(&hdd->reads);
    queue_init(&hdd->stalled);
    queue_init(&hdd->flushes);
    hdd->dirty_last = &hdd->dirty;
    return hdd;
}

void hdd_free(void *device)
{
    struct hdd *hdd = device;

    while (hdd->dirty) {
        struct extent *next = hdd->dirty->next;
        free(hdd->dirty);
        hdd->dirty = next;
    }
    free(hdd->writing);
    free(hdd->segment);
    free(hdd);
}

/* R(L): rates are in bytes a nanosecond. */
static double revolution_of(const struct hdd *hdd, uint64_t byte)
{
    double outer = hdd->params->rate_outer_mb_s / 1000, inner = hdd->params->rate_inner_mb_s / 1000;
    double fall = outer - inner, at = (double)byte / (hdd->revolutions * hdd->revolution_ns);

    return hdd->revolutions * (outer - sqrt(fmax(0, outer * outer - 2 * fall * at))) / fall;
}

static uint64_t byte_at(const struct hdd *hdd, double revolution)
{
    double outer = hdd->params->rate_outer_mb_s / 1000, inner = hdd->params->rate_inner_mb_s / 1000;
    double x = revolution / hdd->revolutions;

    return (uint64_t)(hdd->revolutions * hdd->revolution_ns
                      * (outer * x - (outer - inner) * x * x / 2));
}

/* The end of reading on: that of the segment, or of the disk. */
static uint64_t reads_on_to(const struct hdd *hdd)
{
    uint64_t most = hdd->head + (uint64_t)hdd->params->readahead_bytes;
    uint64_t end = (uint64_t)hdd->params->capacity;

    return most < end ? most : end;
}

/* The head's place, reading on or at rest. */
static uint64_t head_at(const struct hdd *hdd, int64_t now)
{
    if (!hdd->reads_on)
        return hdd->head;
    double turned = (double)(now - hdd->head_since) / hdd->revolution_ns;
    uint64_t at = byte_at(hdd, revolution_of(hdd, hdd->head) + turned), most = reads_on_to(hdd);

    return at < hdd->head ? hdd->head : at < most ? at : most;
}

static double positioning_ns(const struct hdd *hdd, double from, double to, int64_t now)
{
    const struct params *params = hdd->params;
    double seek = 0;

    if (fabs(to - from) >= 1)
        seek = 1000 * (params->seek_min_us + (params->seek_max_us - params->seek_min_us)
                       * sqrt(fabs(to - from) / hdd->revolutions));
    double turns = to - ((double)now + seek) / hdd->revolution_ns;
    double wait = turns - floor(turns);
    /* A rounding error must not cost a revolution if this begins where the last one ended. */
    return seek + (wait < 1 - 1e-6 ? wait * hdd->revolution_ns : 0);
}

/* Does a read begin in the bytes that are being read on? */
static bool joins(const struct hdd *hdd, uint64_t offset, uint64_t head)
{
    return hdd->reads_on && offset >= hdd->segment[0].from && offset <= head;
}

/* The cost of beginning with `offset`, or with the first byte that is missing from there on. */
static double cost_ns(const struct hdd *hdd, bool read, uint64_t offset, double revolution,
                      uint64_t head, int64_t now)
{
    double from = revolution_of(hdd, head);

    if (read && joins(hdd, offset, head))
        return head < reads_on_to(hdd) || now == hdd->head_since
               ? 0 : positioning_ns(hdd, from, from, now);
    if (offset == hdd->head && now == hdd->head_since)
        return 0;
    return positioning_ns(hdd, from, revolution, now);
}

static bool urgent(const struct hdd *hdd)
{
    return hdd->stalled.first || hdd->flushes.first || hdd->fua_waits;
}

/* Of the reads, the one to serve next: its place in the queue, and its cost. */
static struct request **choose_read(struct hdd *hdd, uint64_t head, int64_t now, double *best,
                                    bool *aged)
{
    int64_t too_old = now - (int64_t)(hdd->params->aging_ms * 1e6);
    struct request **chosen = NULL;

    for (struct request **r = &hdd->reads.first; *r; r = &(*r)->next) {
        double cost = cost_ns(hdd, true, (*r)->offset, (*r)->revolution, head, now);
        if (cost < *best) {
            *best = cost;
            chosen = r;
        }
        if (r == &hdd->reads.first && (*r)->entered <= too_old) { /* the first is the oldest */
            *aged = true;
            break;
        }
    }
    return chosen;
}

/* The same for the queue_depth oldest writes, if one costs less than the best read. */
static struct extent **choose_write(struct hdd *hdd, uint64_t head, int64_t now, double *best)
{
    struct extent **chosen = NULL;
    unsigned left = (unsigned)hdd->params->queue_depth;

    for (struct extent **e = &hdd->dirty; *e && left > 0; e = &(*e)->next, left--) {
        double cost = cost_ns(hdd, false, (*e)->offset, (*e)->revolution, head, now);
        if (cost < *best) {
            *best = cost;
            chosen = e;
        }
    }
    return chosen;
}

/* Send the arm to a read; returns the byte at which the medium is read first. */
static uint64_t begin_read(struct hdd *hdd, struct request **place, uint64_t head, int64_t now)
{
    struct request *read = *place;
    uint64_t end = read->offset + read->length;

    *place = read->next;
    if (!read->next)
        hdd->reads.last = place;
    hdd->reading = read;
    read->start = now;
    read->unit = 0;
    if (joins(hdd, read->offset, head)) {
        hdd->segment[0].to = end > head ? end : head;
        return head;
    }
    if (hdd->reads_on)
        hdd->segment[0].to = head;
    unsigned most = (unsigned)hdd->params->segments;
    hdd->segments += hdd->segments < most;
    for (unsigned i = hdd->segments - 1; i > 0; i--)
        hdd->segment[i] = hdd->segment[i - 1];
    hdd->segment[0] = (struct segment){ read->offset, end };
    return read->offset;
}

static void begin_write(struct hdd *hdd, struct extent **place, uint64_t head, int64_t now)
{
    struct extent *extent = *place;

    *place = extent->next;
    if (!extent->next)
        hdd->dirty_last = place;
    hdd->writing = extent;
    if (hdd->reads_on)
        hdd->segment[0].to = head;
    if (extent->fua) {
        extent->fua->start = now;
        extent->fua->unit = 0;
    }
}

/* If the arm is free, choose its next read or write, if there is one. */
static void dispatch(struct sim *sim)
{
    struct hdd *hdd = sim->device;
    int64_t now = sim->now;
    uint64_t head = head_at(hdd, now), begin, end;
    double cost = INFINITY;
    bool aged = false;
    struct extent **write = NULL;

    if (hdd->reading || hdd->writing)
        return;
    struct request **read = choose_read(hdd, head, now, &cost, &aged);
    if (!aged && (!read || urgent(hdd)))
        write = choose_write(hdd, head, now, &cost);
    if (write) {
        begin_write(hdd, write, head, now);
        begin = hdd->writing->offset;
        end = begin + hdd->writing->length;
    } else if (read) {
        begin = begin_read(hdd, read, head, now);
        end = hdd->segment[0].to;
    } else {
        return;
    }
    hdd->reads_on = false;
    hdd->head = end;
    double medium = (revolution_of(hdd, end) - revolution_of(hdd, begin)) * hdd->revolution_ns;
    sim_schedule(sim, now + (int64_t)(cost + medium + 0.5), EVENT_ARM, NULL);
}

static bool in_read_buffer(struct hdd *hdd, uint64_t from, uint64_t to, int64_t now)
{
    for (unsigned i = 0; i < hdd->segments; i++) {
        struct segment segment = hdd->segment[i];
        if (i == 0 && hdd->reading)
            continue; /* it is being filled */
        if (i == 0 && hdd->reads_on)
            segment.to = head_at(hdd, now);
        if (segment.from <= from && to <= segment.to)
            return true;
    }
    return false;
}

/* Let writes into the buffer, in order, while they fit; a large one when it is empty. */
static void admit(struct sim *sim)
{
    struct hdd *hdd = sim->device;
    struct request *write;

    while ((write = hdd->stalled.first)
           && (hdd->buffered == 0 || (double)(hdd->buffered + write->length)
               <= hdd->params->buffer_bytes)) {
        queue_take(&hdd->stalled);
        hdd->buffered += write->length;
        write->start = sim->now;
        sim_schedule(sim, sim->now + transfer_ns(write->length, hdd->params->link_mb_s),
                     EVENT_BUFFERED, write);
    }
}

/* Finish flushes, in order, when no extent is left that was put before them. */
static void finish_flushes(struct sim *sim)
{
    struct hdd *hdd = sim->device;
    uint64_t least = hdd->writing ? hdd->writing->number : UINT64_MAX;

    for (const struct extent *extent = hdd->dirty; extent; extent = extent->next)
        least = extent->number < least ? extent->number : least;
    while (hdd->flushes.first && hdd->flushes.first->mark <= least)
        sim_finish(sim, queue_take(&hdd->flushes), sim->now);
}

static void buffered(struct sim *sim, struct request *write)
{
    struct hdd *hdd = sim->device;
    struct extent *extent = must(calloc(1, sizeof *extent));

    *extent = (struct extent){ write->offset, write->length, hdd->put++,
                               revolution_of(hdd, write->offset), NULL, NULL };
    *hdd->dirty_last = extent;
    hdd->dirty_last = &extent->next;
    if (write->fua) {
        extent->fua = write;
        hdd->fua_waits++;
    } else {
        sim_finish(sim, write, sim->now);
    }
}

void hdd_enter(struct sim *sim, struct request *request)
{
    struct hdd *hdd = sim->device;

    sim_schedule(sim, sim->now + (int64_t)(hdd->params->command_us * 1000), EVENT_READY, request);
}

void hdd_event(struct sim *sim, int kind, void *what)
{
    struct hdd *hdd = sim->device;
    struct request *request = what;

    if (kind == EVENT_READY && request->op == OP_READ) {
        if (in_read_buffer(hdd, request->offset, request->offset + request->length, sim->now)) {
            request->start = sim->now;
            sim_finish(sim, request,
                       sim->now + transfer_ns(request->length, hdd->params->link_mb_s));
        } else {
            request->revolution = revolution_of(hdd, request->offset);
            queue_put(&hdd->reads, request);
        }
    } else if (kind == EVENT_READY && request->op == OP_WRITE) {
        queue_put(&hdd->stalled, request);
        admit(sim);
    } else if (kind == EVENT_READY) {
        request->start = sim->now;
        request->mark = hdd->put;
        queue_put(&hdd->flushes, request);
        finish_flushes(sim);
    } else if (kind == EVENT_BUFFERED) {
        buffered(sim, request);
    } else if (hdd->reading) {
        sim_finish(sim, hdd->reading, sim->now);
        hdd->reading = NULL;
        hdd->reads_on = true;
        hdd->head_since = sim->now;
    } else {
        struct extent *extent = hdd->writing;
        hdd->writing = NULL;
        hdd->head_since = sim->now;
        hdd->buffered -= extent->length;
        if (extent->fua) {
            hdd->fua_waits--;
            sim_finish(sim, extent->fua, sim->now);
        }
        free(extent);
        finish_flushes(sim);
        admit(sim);
    }
    dispatch(sim);
}
