/*
 * replay PARAMS <commands >log: a device's times for commands, without waiting for them.
 *
 * Commands are lines of a log (log.h) in order of arrival. Only op, fua, offset, length and
 * arrival_ns count, so a log's lines, sorted by id, can be given back.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

static void answer(struct request *finished)
{
    while (finished) {
        struct request *next = finished->next;
        log_request(stdout, finished, finished->done);
        free(finished);
        finished = next;
    }
}

int main(int argc, char **argv)
{
    struct params params = params_none();
    const char *error = argc < 2 ? "a file of parameters is needed" : NULL;
    char line[512], op[16];
    struct request given = { 0 };
    int fua;

    if (!error)
        error = params_read(&params, argv[1]);
    for (int i = 2; !error && i < argc; i++) {
        char *value = strchr(argv[i], '=');
        if (value)
            *value++ = '\0';
        error = value ? params_set(&params, argv[i], value) : "an argument is name=value";
    }
    if (!error)
        error = params_check(&params);
    if (error) {
        fprintf(stderr, "replay: %s\n", error);
        return 2;
    }
    struct sim *sim = must(sim_new(&params));
    puts(LOG_HEADER);
    for (unsigned number = 1; fgets(line, sizeof line, stdin); number++) {
        if (strncmp(line, "id,", 3) == 0)
            continue;
        if (sscanf(line, "%*[^,],%15[a-z],%d,%" SCNu64 ",%" SCNu64 ",%" SCNd64, op, &fua,
                   &given.offset, &given.length, &given.arrival) != 5
            || given.arrival < sim->now) {
            fprintf(stderr, "replay: line %u is no command, or before the last\n", number);
            return 1;
        }
        if (op[0] == 'd' && isnan(params.discard_mb_s)) {
            fprintf(stderr, "replay: line %u is a discard: the device needs discard_mb_s\n",
                    number);
            return 1;
        }
        struct request *request = must(malloc(sizeof *request));
        *request = given;
        request->op = op[0] == 'r' ? OP_READ : op[0] == 'w' ? OP_WRITE
                      : op[0] == 'd' ? OP_DISCARD : OP_FLUSH;
        request->fua = fua;
        answer(sim_advance(sim, given.arrival));
        sim_submit(sim, request, given.arrival);
    }
    for (int64_t next; (next = sim_next(sim)) != NEVER;)
        answer(sim_advance(sim, next));
    bool stuck = sim->inside || sim->waiting.first;
    sim_free(sim);
    if (stuck)
        fputs("replay: a command is never done\n", stderr);
    return stuck;
}
