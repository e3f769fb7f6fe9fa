/*
 * Here's how it works. A slot is one of a job's requests that are always under way, as of
 * fio's iodepth. It issues a request, which waits in its drive's queue of the throttle group,
 * passes to the disk, and ends; then the slot issues the next one. Large reads go in parts if
 * the group says so. Whatever happens by itself is an event of ours or of the disk, and the
 * earlier one comes first.
 */
#include "host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { EVENT_ISSUE = 1, EVENT_TIMER, EVENT_ENDED, EVENT_SYNCED };

#define PARTS 16            /* of a read that are under way at once (patch 0012) */
#define PATIENCE_NS 100000000 /* of a bound in flight (patch 0010) */

struct bucket {
    double level, burst;
};

struct group {
    struct host_limits limits;
    struct bucket bucket[6];
    bool keeps_levels;
    int64_t leaked_ns, timer_ns[2], progress_ns, excess_ns;
    double excess;
    unsigned in_flight;
    struct drive *drive, *turn; /* all, by their `next`; whose turn it is, or NULL: the first one's */
};

struct drive {
    struct host *host;
    struct group *group;
    struct drive *next; /* of its group */
    int64_t offset, path_ns;
    double byte_ns;
    struct queue queue[2]; /* of parts that wait */
    struct host_counts counts[2];
    int64_t entries, room;
    int64_t *at_ns, *latency_ns;
    int32_t *bytes;
    uint8_t *is_write;
};

struct job {
    struct host_job is;
    struct drive *drive;
    int64_t position, left, next_ns;
};

struct slot {
    struct job *job;
    uint64_t random;
    bool due; /* by its job's rate */
};

/* A guest's request. */
struct io {
    struct slot *slot;
    bool write, counted;
    int64_t offset, bytes, at_ns, begun; /* begun: bytes of parts that are under way, or done */
    unsigned parts;
};

/* Of a request, or all of it: what the disk gets. A flush has no io, but slots. */
struct part {
    struct request disk;
    struct io *io;
    struct slot **slots;
    size_t count;
    int64_t queued_ns, sent_ns;
    bool waited;
};

struct host {
    struct params params;
    struct sim *disk;
    double slowdown;
    int64_t now, late_ns, busy_since;
    uint64_t random;
    struct agenda agenda;
    struct group **group;
    struct drive **drive;
    struct job **job;
    struct slot **slot;
    size_t groups, drives, jobs, slots;
    struct host_disk_counts counts;
    struct slot **unsynced; /* wait for a flush that is not under way yet */
    size_t unsynced_count;
    bool flushing;
};

static char error_text[512];

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double chance(uint64_t *state) /* from 0 to below 1 */
{
    return (double)(next_random(state) >> 11) / 9007199254740992.0;
}

static void *grown(void *array, size_t count, size_t size)
{
    if (count & (count - 1)) /* it has room up to the next power of two */
        return array;
    return must(realloc(array, (count ? 2 * count : 1) * size));
}

#define APPEND(array, count, item) \
    ((array) = grown((array), (count), sizeof *(array)), (array)[(count)++] = (item))

static void schedule(struct host *host, int64_t at, int kind, void *what)
{
    agenda_add(&host->agenda, at > host->now ? at : host->now, kind, what);
}

static int bin(int64_t value)
{
    return value > 0 ? 63 - __builtin_clzll((uint64_t)value) : 0;
}

/* The throttle. */

static double curve_cost(const struct host_limits *limits, int write, int64_t bytes)
{
    int points = limits->points[write];
    const double *size = limits->size[write], *cost = limits->cost[write];
    double x = (double)bytes;
    int i = 1;

    if (!points)
        return limits->iops_size ? fmax(1, x / limits->iops_size) : 1;
    if (points == 1 || x <= size[0])
        return cost[0];
    while (i < points - 1 && x > size[i])
        i++;
    return cost[i - 1] + (cost[i] - cost[i - 1]) * (x - size[i - 1]) / (size[i] - size[i - 1]);
}

static bool is_for(int bucket, int write)
{
    return bucket % 3 == 0 || bucket % 3 == 1 + write;
}

static double room_of(const struct host_limits *limits, int i)
{
    return limits->max[i] ? limits->max[i] * limits->length[i] : limits->avg[i] / 10;
}

static void leak(struct group *group, int64_t now)
{
    const struct host_limits *limits = &group->limits;
    double s = (double)(now - group->leaked_ns) / 1e9;
    bool waits[2] = { false, false };

    for (struct drive *drive = group->drive; drive; drive = drive->next)
        for (int w = 0; w < 2; w++)
            waits[w] = waits[w] || drive->queue[w].first;
    for (int i = 0; i < 6; i++) {
        double least = 0;
        if (!limits->avg[i])
            continue;
        if (!limits->max[i] && !(is_for(i, 0) && waits[0]) && !(is_for(i, 1) && waits[1]))
            least = room_of(limits, i) - limits->avg[i] * (double)limits->idle_credit_ns / 1e9;
        group->bucket[i].level -= limits->avg[i] * s;
        group->bucket[i].level = fmax(group->bucket[i].level, fmax(least, 0));
        group->bucket[i].burst = fmax(group->bucket[i].burst - limits->max[i] * s, 0);
    }
    group->leaked_ns = now;
}

static double wait_s(const struct group *group, int write)
{
    const struct host_limits *limits = &group->limits;
    double longest = 0;

    for (int i = 0; i < 6; i++) {
        double extra = group->bucket[i].level - room_of(limits, i);
        if (!limits->avg[i] || !is_for(i, write))
            continue;
        if (extra > 0)
            longest = fmax(longest, extra / limits->avg[i]);
        else if (limits->length[i] > 1 && group->bucket[i].burst > limits->max[i] / 10)
            longest = fmax(longest, group->bucket[i].burst / limits->max[i] - 0.1);
    }
    return longest;
}

/* When another part may be in flight: now, later, or NEVER: when one ends. */
static int64_t not_full_at(struct group *group, int64_t now)
{
    double bound = group->limits.max_in_flight, rest = bound - group->in_flight;
    int64_t at = group->progress_ns + PATIENCE_NS;

    if (!bound)
        return now;
    group->excess += (double)(now - group->excess_ns) * -rest;
    group->excess = fmax(group->excess, 0);
    group->excess_ns = now;
    if (rest >= 1 || (rest > 0 && group->excess == 0))
        return now;
    if (rest > 0 && (double)at > (double)now + group->excess / rest)
        at = now + (int64_t)(group->excess / rest) + 1;
    return at > now ? at : now;
}

static void send(struct host *host, struct part *part)
{
    part->sent_ns = host->now;
    if (!host->counts.in_flight++)
        host->busy_since = host->now;
    sim_submit(host->disk, &part->disk, (int64_t)((double)host->now / host->slowdown));
}

static void pass(struct host *host, struct group *group, struct part *part)
{
    struct io *io = part->io;
    struct host_counts *counts = &io->slot->job->drive->counts[io->write];
    double share = (double)part->disk.length / (double)io->bytes;
    double cost = share * curve_cost(&group->limits, io->write, io->bytes);

    for (int i = 0; i < 6; i++) {
        if (group->limits.avg[i] && is_for(i, io->write)) {
            group->bucket[i].level += i < 3 ? (double)part->disk.length : cost;
            group->bucket[i].burst += i < 3 ? (double)part->disk.length : cost;
        }
    }
    if (!io->counted) {
        counts->passed++;
        counts->sizes[bin(io->bytes)]++;
        if (part->waited) {
            counts->waited++;
            counts->wait_ns += host->now - part->queued_ns;
        }
        io->counted = true;
    }
    counts->passed_bytes += (int64_t)part->disk.length;
    counts->cost += cost;
    group->in_flight++;
    group->progress_ns = host->now;
    send(host, part);
}

/* Let all parts pass that may; the members of a group have a part each in turn. */
static void pump(struct host *host, struct group *group)
{
    for (int blocked = 0, w = 0; blocked < 2; w = !w) {
        struct drive *first = group->turn ? group->turn : group->drive, *next = first;
        int64_t at;

        while (next && !next->queue[w].first) {
            next = next->next ? next->next : group->drive;
            if (next == first)
                next = NULL;
        }
        if (!next) {
            blocked++;
            continue;
        }
        struct part *part = (struct part *)next->queue[w].first;
        leak(group, host->now);
        at = host->now + (int64_t)ceil(wait_s(group, w) * 1e9);
        if (at == host->now)
            at = not_full_at(group, host->now);
        if (at > host->now) {
            part->waited = true;
            if (group->timer_ns[w] <= host->now || group->timer_ns[w] > at) {
                double late = -log(1 - chance(&host->random)) * (double)host->late_ns;
                group->timer_ns[w] = at + (int64_t)late;
                schedule(host, group->timer_ns[w], EVENT_TIMER, group);
            }
            blocked++;
            continue;
        }
        queue_take(&next->queue[w]);
        group->turn = next->next;
        blocked = 0;
        pass(host, group, part);
    }
}

static void queue_parts(struct host *host, struct io *io)
{
    struct drive *drive = io->slot->job->drive;
    int64_t split = io->write ? 0 : drive->group->limits.split_bytes;

    while (io->begun < io->bytes && (split ? io->parts < PARTS : !io->parts)) {
        struct part *part = must(calloc(1, sizeof *part));
        int64_t at = io->offset + io->begun, rest = io->bytes - io->begun;
        int64_t length = split && split - at % split < rest ? split - at % split : rest;

        part->io = io;
        part->queued_ns = host->now;
        part->disk.op = io->write ? OP_WRITE : OP_READ;
        part->disk.offset = (uint64_t)(drive->offset + at);
        part->disk.length = (uint64_t)length;
        io->begun += length;
        io->parts++;
        leak(drive->group, host->now); /* while it does not wait yet */
        queue_put(&drive->queue[io->write], &part->disk);
    }
    pump(host, drive->group);
}

/* Loads. */

static int64_t draw_size(struct slot *slot, int write)
{
    const struct host_job *job = &slot->job->is;
    double sum = 0, at;
    int i = 0;

    for (int k = 0; k < job->sizes[write]; k++)
        sum += job->weight[write][k];
    at = job->sizes[write] > 1 ? chance(&slot->random) * sum : 0;
    while (i < job->sizes[write] - 1 && at >= job->weight[write][i])
        at -= job->weight[write][i++];
    return job->size[write][i];
}

static void issue(struct host *host, struct slot *slot)
{
    struct job *job = slot->job;
    const struct host_job *is = &job->is;
    int64_t now = host->now, round = is->busy_ns + is->pause_ns;

    if (now >= is->end_ns || (is->amount && job->left <= 0))
        return;
    if (is->busy_ns && (now - is->start_ns) % round >= is->busy_ns) {
        schedule(host, now + round - (now - is->start_ns) % round, EVENT_ISSUE, slot);
        return;
    }
    if (is->rate && !slot->due) {
        slot->due = true;
        schedule(host, job->next_ns, EVENT_ISSUE, slot);
        job->next_ns = (job->next_ns > now ? job->next_ns : now) + (int64_t)(1e9 / is->rate);
        return;
    }
    slot->due = false;
    struct io *io = must(calloc(1, sizeof *io));
    io->slot = slot;
    io->at_ns = now;
    io->write = is->read_part < 1 && (is->read_part == 0 || chance(&slot->random) >= is->read_part);
    io->bytes = draw_size(slot, io->write);
    if (is->random) {
        uint64_t blocks = (uint64_t)(is->bytes / io->bytes);
        io->offset = is->offset + (int64_t)(next_random(&slot->random) % blocks) * io->bytes;
    } else {
        if (job->position + io->bytes > is->bytes)
            job->position = 0;
        io->offset = is->offset + job->position;
        job->position += io->bytes;
    }
    job->left -= io->bytes;
    queue_parts(host, io);
}

static void log_end(struct drive *drive, const struct io *io, int64_t now)
{
    if (drive->entries == drive->room) {
        size_t room = drive->room ? 2 * (size_t)drive->room : 4096;
        drive->at_ns = must(realloc(drive->at_ns, room * sizeof *drive->at_ns));
        drive->latency_ns = must(realloc(drive->latency_ns, room * sizeof *drive->latency_ns));
        drive->bytes = must(realloc(drive->bytes, room * sizeof *drive->bytes));
        drive->is_write = must(realloc(drive->is_write, room));
        drive->room = (int64_t)room;
    }
    drive->at_ns[drive->entries] = now;
    drive->latency_ns[drive->entries] = now - io->at_ns;
    drive->bytes[drive->entries] = (int32_t)io->bytes;
    drive->is_write[drive->entries++] = io->write;
}

/* One flush at a time; those that wait become one, as in the kernel's blk-flush.c. */
static void flush(struct host *host)
{
    if (host->flushing || !host->unsynced_count)
        return;
    struct part *part = must(calloc(1, sizeof *part));
    part->disk.op = OP_FLUSH;
    part->slots = host->unsynced;
    part->count = host->unsynced_count;
    host->unsynced = NULL;
    host->unsynced_count = 0;
    host->flushing = true;
    sim_submit(host->disk, &part->disk, (int64_t)((double)host->now / host->slowdown));
}

static void ended(struct host *host, struct io *io)
{
    struct slot *slot = io->slot;
    struct host_counts *counts = &slot->job->drive->counts[io->write];

    counts->requests++;
    counts->bytes += io->bytes;
    counts->time_ns += host->now - io->at_ns;
    log_end(slot->job->drive, io, host->now);
    if (io->write && slot->job->is.syncs) {
        APPEND(host->unsynced, host->unsynced_count, slot);
        flush(host);
    } else {
        issue(host, slot);
    }
    free(io);
}

static void served(struct host *host, struct part *part)
{
    int write = part->disk.op == OP_WRITE;

    if (part->disk.op == OP_FLUSH) {
        for (size_t i = 0; i < part->count; i++)
            schedule(host, host->now + part->slots[i]->job->drive->path_ns, EVENT_SYNCED,
                     part->slots[i]);
        free(part->slots);
        free(part);
        host->flushing = false;
        flush(host);
        return;
    }
    struct io *io = part->io;
    struct drive *drive = io->slot->job->drive;
    struct group *group = drive->group;
    int64_t took = host->now - part->sent_ns;

    host->counts.requests[write]++;
    host->counts.bytes[write] += (int64_t)part->disk.length;
    host->counts.time_ns[write] += took;
    if (!--host->counts.in_flight)
        host->counts.busy_ns += host->now - host->busy_since;
    drive->counts[write].ended++;
    drive->counts[write].below_ns += took;
    drive->counts[write].below[bin(took)]++;
    not_full_at(group, host->now); /* what was in flight until now counts */
    group->in_flight--;
    group->progress_ns = host->now;
    free(part);
    io->parts--;
    if (io->begun < io->bytes)
        queue_parts(host, io);
    else if (!io->parts)
        schedule(host,
                 host->now + drive->path_ns + (int64_t)(drive->byte_ns * (double)io->bytes),
                 EVENT_ENDED, io);
    if (group->limits.max_in_flight)
        pump(host, group);
}

static void happens(struct host *host, struct event event)
{
    struct group *group = event.what;

    switch (event.kind) {
    case EVENT_TIMER:
        for (int w = 0; w < 2; w++)
            if (group->timer_ns[w] == event.at)
                group->timer_ns[w] = 0;
        pump(host, group);
        break;
    case EVENT_ENDED:
        ended(host, event.what);
        break;
    default:
        issue(host, event.what);
    }
}

static void serve_finished(struct host *host, int64_t model)
{
    struct request *finished = sim_advance(host->disk, model);

    while (finished) {
        struct request *next = finished->next;
        served(host, (struct part *)finished);
        finished = next;
    }
}

void host_run(struct host *host, int64_t until)
{
    for (;;) {
        int64_t model = sim_next(host->disk), at = NEVER;
        if (host->disk->finished.first)
            model = host->disk->now;
        if (model != NEVER)
            at = (int64_t)((double)model * host->slowdown) + (host->slowdown != 1);
        if (at < host->now)
            at = host->now;
        if (host->agenda.events && agenda_next(&host->agenda) <= at) {
            if (agenda_next(&host->agenda) > until)
                break;
            struct event event = agenda_take(&host->agenda);
            host->now = event.at;
            happens(host, event);
        } else if (at <= until) {
            host->now = at;
            serve_finished(host, model);
        } else {
            break;
        }
    }
    host->now = until;
}

/* Setting up, and looking. */

struct host *host_new(const char *params, double slowdown, uint64_t seed, int64_t late_ns)
{
    struct host *host = must(calloc(1, sizeof *host));
    const char *error;

    host->params = params_none();
    error = params_read(&host->params, params);
    host->slowdown = slowdown;
    host->random = seed;
    host->late_ns = late_ns;
    if (!error)
        return host;
    strncpy(error_text, error, sizeof error_text - 1);
    free(host);
    return NULL;
}

const char *host_error(void)
{
    return error_text;
}

const char *host_param(struct host *host, const char *name, const char *value)
{
    return params_set(&host->params, name, value);
}

const char *host_begin(struct host *host)
{
    const char *error = params_check(&host->params);

    if (!error)
        host->disk = must(sim_new(&host->params));
    return error;
}

int32_t host_group(struct host *host, int32_t keeps_levels)
{
    struct group *group = must(calloc(1, sizeof *group));

    group->keeps_levels = keeps_levels;
    APPEND(host->group, host->groups, group);
    return (int32_t)host->groups - 1;
}

int32_t host_drive(struct host *host, int32_t group, int64_t offset, int64_t path_ns,
                   double byte_ns)
{
    struct drive *drive = must(calloc(1, sizeof *drive));

    drive->host = host;
    drive->group = host->group[group];
    drive->offset = offset;
    drive->path_ns = path_ns;
    drive->byte_ns = byte_ns;
    drive->next = drive->group->drive;
    drive->group->drive = drive;
    queue_init(&drive->queue[0]);
    queue_init(&drive->queue[1]);
    APPEND(host->drive, host->drives, drive);
    return (int32_t)host->drives - 1;
}

void host_job(struct host *host, const struct host_job *is)
{
    struct job *job = must(calloc(1, sizeof *job));

    job->is = *is;
    job->drive = host->drive[is->drive];
    job->left = is->amount;
    job->next_ns = is->start_ns;
    APPEND(host->job, host->jobs, job);
    for (int i = 0; i < is->depth; i++) {
        struct slot *slot = must(calloc(1, sizeof *slot));
        slot->job = job;
        slot->random = next_random(&host->random);
        APPEND(host->slot, host->slots, slot);
        schedule(host, is->start_ns + (int64_t)(chance(&slot->random) * (double)is->spread_ns),
                 EVENT_ISSUE, slot);
    }
}

void host_set(struct host *host, int32_t number, const struct host_limits *limits)
{
    struct group *group = host->group[number];
    struct host_limits before = group->limits;

    leak(group, host->now);
    group->limits = *limits;
    for (int i = 0; i < 6; i++) {
        double old = before.avg[i] ? room_of(&before, i) : 0, new = room_of(limits, i);
        struct bucket *bucket = &group->bucket[i];
        if (!group->keeps_levels || !old || !limits->avg[i]) {
            *bucket = (struct bucket){ 0, 0 };
            continue;
        }
        if (!before.max[i] && limits->max[i]) { /* a new burst is unused, and takes a debt along */
            bucket->burst = bucket->level;
            bucket->level = fmax(bucket->level - old, 0);
        } else {
            bucket->level = bucket->level > old ? new + bucket->level - old
                                                : bucket->level * new / old;
        }
    }
    group->timer_ns[0] = group->timer_ns[1] = 0;
    group->excess = 0;
    group->excess_ns = host->now;
    pump(host, group);
}

void host_drive_counts(struct host *host, int32_t drive, int32_t write, struct host_counts *counts)
{
    struct request *waiting = host->drive[drive]->queue[write].first;

    *counts = host->drive[drive]->counts[write];
    for (; waiting; waiting = waiting->next)
        counts->waiting++;
}

void host_disk_counts(struct host *host, struct host_disk_counts *counts)
{
    *counts = host->counts;
    if (counts->in_flight)
        counts->busy_ns += host->now - host->busy_since;
}

void host_drive_log(struct host *host, int32_t number, struct host_log *log)
{
    struct drive *drive = host->drive[number];

    *log = (struct host_log){ drive->entries, drive->at_ns, drive->latency_ns, drive->bytes,
                              drive->is_write };
}

static void free_parts(struct queue *queue)
{
    struct request *request;

    while ((request = queue_take(queue))) {
        free(((struct part *)request)->slots);
        free(request);
    }
}

void host_free(struct host *host)
{
    for (size_t i = 0; i < host->drives; i++) {
        struct drive *drive = host->drive[i];
        free_parts(&drive->queue[0]);
        free_parts(&drive->queue[1]);
        free(drive->at_ns);
        free(drive->latency_ns);
        free(drive->bytes);
        free(drive->is_write);
        free(drive);
    }
    for (size_t i = 0; i < host->groups; i++)
        free(host->group[i]);
    for (size_t i = 0; i < host->jobs; i++)
        free(host->job[i]);
    for (size_t i = 0; i < host->slots; i++)
        free(host->slot[i]);
    if (host->disk)
        sim_free(host->disk);
    free(host->group);
    free(host->drive);
    free(host->job);
    free(host->slot);
    free(host->unsynced);
    free(host->agenda.heap);
    free(host);
}
