#include "device.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "log.h"

static struct params params;
static bool begun; /* params are set up */
static double size = NAN, slowdown = 1;
static char *log_path;

static FILE *log_file;
static device_answer *answer;
static struct timespec began;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t earlier; /* is the next event, than the clock thinks */
static struct sim *sim;
static int64_t clock_until;
static bool stopping;
static pthread_t clock_thread;

const char *device_option(const char *name, const char *value)
{
    if (!begun) {
        params = params_none();
        begun = true;
    }
    if (strcmp(name, "params") == 0)
        return params_read(&params, value);
    if (strcmp(name, "size") == 0)
        return params_number(&size, "size", value, 512, 1e15);
    if (strcmp(name, "slowdown") == 0)
        return params_number(&slowdown, "slowdown", value, 0.001, 1e6);
    if (strcmp(name, "log") == 0) {
        free(log_path);
        log_path = must(strdup(value));
        return NULL;
    }
    return params_set(&params, name, value);
}

const char *device_check(void)
{
    const char *error = begun ? params_check(&params) : "a device is missing: params=FILE";

    if (!error && isnan(size))
        size = params.capacity;
    if (!error && size > params.capacity)
        error = "size is more than the device's capacity";
    return error;
}

uint64_t device_size(void)
{
    return (uint64_t)size;
}

bool device_discards(void)
{
    return !isnan(params.discard_mb_s);
}

static int64_t model_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t real = (now.tv_sec - began.tv_sec) * INT64_C(1000000000) + now.tv_nsec - began.tv_nsec;
    return slowdown == 1 ? real : (int64_t)((double)real / slowdown);
}

static struct timespec real_time(int64_t model)
{
    int64_t ns = began.tv_nsec + (slowdown == 1 ? model : (int64_t)((double)model * slowdown) + 1);

    return (struct timespec){ began.tv_sec + ns / 1000000000, ns % 1000000000 };
}

static void *run_clock(void *unused)
{
    (void)unused;
    prctl(PR_SET_TIMERSLACK, 1UL); /* the kernel may be 50 us late otherwise */
    pthread_mutex_lock(&lock);
    while (!stopping) {
        struct request *finished = sim_advance(sim, model_now());
        if (finished) {
            pthread_mutex_unlock(&lock);
            while (finished) {
                struct request *next = finished->next;
                if (log_file)
                    log_request(log_file, finished, model_now());
                answer(finished); /* it may be gone after that */
                finished = next;
            }
            pthread_mutex_lock(&lock);
            continue; /* time has passed */
        }
        clock_until = sim_next(sim);
        if (clock_until == NEVER) {
            pthread_cond_wait(&earlier, &lock);
        } else {
            struct timespec until = real_time(clock_until);
            pthread_cond_timedwait(&earlier, &lock, &until);
        }
        clock_until = INT64_MIN; /* it is awake */
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

const char *device_start(device_answer *callback)
{
    pthread_condattr_t monotonic;

    answer = callback;
    if (log_path) {
        log_file = fopen(log_path, "we");
        if (!log_file)
            return params_wrong("%s: %s", log_path, strerror(errno));
        setvbuf(log_file, NULL, _IOFBF, 1 << 20);
        fputs(LOG_HEADER "\n", log_file);
    }
    sim = must(sim_new(&params));
    clock_until = INT64_MIN;
    clock_gettime(CLOCK_MONOTONIC, &began);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&earlier, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int failed = pthread_create(&clock_thread, NULL, run_clock, NULL);
    return failed ? params_wrong("the clock's thread: %s", strerror(failed)) : NULL;
}

void device_submit(struct request *request)
{
    pthread_mutex_lock(&lock);
    int64_t now = model_now();
    sim_submit(sim, request, now > sim->now ? now : sim->now);
    if (sim->finished.first || sim_next(sim) < clock_until)
        pthread_cond_signal(&earlier);
    pthread_mutex_unlock(&lock);
}

void device_stop(void)
{
    if (!sim)
        return;
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_signal(&earlier);
    pthread_mutex_unlock(&lock);
    pthread_join(clock_thread, NULL);
    sim_free(sim);
    sim = NULL;
    if (log_file)
        fclose(log_file);
    free(log_path);
}
