#include "params.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
    double least, greatest;
    enum kind kind;
    bool extra;
} table[] = {
#define FIELD(name) #name, offsetof(struct params, name)
#define X(name, least, greatest, kind) { FIELD(name), least, greatest, kind, false },
    PARAMS(X)
#undef X
#define X(name, least, greatest) { FIELD(name), least, greatest, KIND_FLASH, true },
    EXTRAS(X)
#undef X
};

enum { COUNT = sizeof table / sizeof table[0] };

static double *field(struct params *params, size_t i)
{
    return (double *)((char *)params + table[i].offset);
}

const char *params_wrong(const char *format, ...)
{
    static char text[512];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return text;
}

struct params params_none(void)
{
    struct params params = { .kind = KIND_NONE };

    for (size_t i = 0; i < COUNT; i++)
        *field(&params, i) = NAN;
    return params;
}

const char *params_number(double *number, const char *name, const char *value, double least,
                          double greatest)
{
    static const char suffixes[] = "KMGT";
    char *end;
    double given = strtod(value, &end);
    const char *suffix = *end ? strchr(suffixes, *end) : NULL;

    if (end != value && suffix) {
        given = ldexp(given, 10 * (int)(suffix - suffixes + 1));
        end++;
    }
    if (end == value || *end)
        return params_wrong("%s is a number, perhaps with K, M, G or T, not %s", name, value);
    if (!(given >= least && given <= greatest))
        return params_wrong("%s is from %g to %g, not %s", name, least, greatest, value);
    *number = given;
    return NULL;
}

const char *params_set(struct params *params, const char *name, const char *value)
{
    if (strcmp(name, "kind") == 0) {
        params->kind = strcmp(value, "hdd") == 0 ? KIND_HDD
                       : strcmp(value, "flash") == 0 ? KIND_FLASH : KIND_NONE;
        return params->kind == KIND_NONE ? params_wrong("kind is hdd or flash, not %s", value) : NULL;
    }
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(name, table[i].name) != 0)
            continue;
        return params_number(field(params, i), name, value, table[i].least, table[i].greatest);
    }
    return params_wrong("%s is not a parameter of a device", name);
}

const char *params_read(struct params *params, const char *path)
{
    char line[512], name[64], value[64];
    const char *error = NULL;
    FILE *file = fopen(path, "r");

    if (!file)
        return params_wrong("%s: %s", path, strerror(errno));
    for (unsigned number = 1; !error && fgets(line, sizeof line, file); number++) {
        char rest;
        line[strcspn(line, "#\n")] = '\0';
        if (line[strspn(line, " \t")] == '\0')
            continue;
        if (sscanf(line, " %63[a-z_] = %63[^ \t] %c", name, value, &rest) != 2) {
            error = params_wrong("%s:%u: a line is `name = value`", path, number);
        } else if ((error = params_set(params, name, value))) {
            char why[512];
            snprintf(why, sizeof why, "%s", error);
            error = params_wrong("%s:%u: %s", path, number, why);
        }
    }
    fclose(file);
    return error;
}

static bool has(double value)
{
    return !isnan(value);
}

/* Groups of extras that are there in part, or contradict each other. */
static const char *check_extras(const struct params *p)
{
    bool paused = has(p->pause_every_bytes) || has(p->pause_every_s);

    if (has(p->pause_ms) != paused || has(p->pause_factor) != paused)
        return params_wrong("a pause needs pause_every_bytes or pause_every_s, pause_ms and "
                            "pause_factor");
    if (p->pause_every_bytes > 0 && p->pause_every_s > 0)
        return params_wrong("pause_every_bytes and pause_every_s are both there: one must be 0");
    if (p->pause_every_s > 0 && p->pause_ms >= p->pause_every_s * 1000)
        return params_wrong("pause_ms is not less than pause_every_s");
    if (has(p->slc_bytes) != has(p->slc_factor) || has(p->slc_bytes) != has(p->slc_empty_mb_s))
        return params_wrong("an SLC cache needs slc_bytes, slc_factor and slc_empty_mb_s");
    if (has(p->extra_us) != has(p->extra_from_s) || has(p->extra_us) != has(p->extra_to_s))
        return params_wrong("extra latency needs extra_us, extra_from_s and extra_to_s");
    if (p->extra_to_s <= p->extra_from_s)
        return params_wrong("extra_to_s is not after extra_from_s");
    return NULL;
}

const char *params_check(const struct params *params)
{
    struct params copy = *params;

    if (params->kind == KIND_NONE)
        return params_wrong("kind is missing: hdd or flash");
    for (size_t i = 0; i < COUNT; i++) {
        bool wanted = table[i].kind == KIND_NONE || table[i].kind == params->kind;
        bool there = has(*field(&copy, i));
        if (wanted != there && !(wanted && table[i].extra))
            return params_wrong("%s %s", table[i].name,
                         wanted ? "is missing" : "is of another kind of device");
    }
    if (params->kind == KIND_HDD && params->seek_max_us < params->seek_min_us)
        return params_wrong("seek_max_us is less than seek_min_us");
    if (params->kind == KIND_HDD && params->rate_outer_mb_s <= params->rate_inner_mb_s)
        return params_wrong("rate_outer_mb_s is not above rate_inner_mb_s");
    if (params->kind == KIND_FLASH && params->buffer_bytes < params->program_bytes)
        return params_wrong("buffer_bytes is less than program_bytes");
    return check_extras(params);
}
