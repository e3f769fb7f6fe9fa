/* The parameters of a device: one file of lines `name = value`, see README.md. */
#ifndef DISKSIM_PARAMS_H
#define DISKSIM_PARAMS_H

#include <stdbool.h>
#include <stddef.h>

enum kind { KIND_NONE, KIND_HDD, KIND_FLASH };

/* name, least, greatest, for which kind (KIND_NONE: both) */
#define PARAMS(X) \
    X(capacity, 1048576, 1e15, KIND_NONE)       /* bytes */ \
    X(queue_depth, 1, 65536, KIND_NONE)         /* commands in the device at once */ \
    X(flush_exclusive, 0, 1, KIND_NONE)         /* 1: a flush is alone in the device (SATA) */ \
    X(link_mb_s, 1, 1e6, KIND_NONE)             /* between buffer and host */ \
    X(buffer_bytes, 4096, 1e12, KIND_NONE)      /* of the write buffer */ \
    X(rpm, 100, 1e6, KIND_HDD) \
    X(seek_min_us, 0, 1e6, KIND_HDD)            /* to the next track */ \
    X(seek_max_us, 0, 1e6, KIND_HDD)            /* over the whole disk */ \
    X(rate_outer_mb_s, 0.1, 1e5, KIND_HDD)      /* of the medium, first track */ \
    X(rate_inner_mb_s, 0.1, 1e5, KIND_HDD)      /* last track */ \
    X(command_us, 0, 1e6, KIND_HDD) \
    X(aging_ms, 0, 1e7, KIND_HDD)               /* older commands go first */ \
    X(segments, 1, 4096, KIND_HDD)              /* of the read buffer */ \
    X(readahead_bytes, 0, 1e9, KIND_HDD) \
    X(units, 1, 65536, KIND_FLASH)              /* that work in parallel */ \
    X(page_bytes, 512, 1e8, KIND_FLASH)         /* read at once, and the stripe over units */ \
    X(read_us, 0, 1e6, KIND_FLASH) \
    X(program_bytes, 512, 1e8, KIND_FLASH)      /* written at once */ \
    X(program_us, 0, 1e6, KIND_FLASH) \
    X(read_command_us, 0, 1e6, KIND_FLASH)      /* of the controller, one after the other */ \
    X(write_command_us, 0, 1e6, KIND_FLASH) \
    X(latency_us, 0, 1e6, KIND_FLASH)           /* of each command; holds up no other */ \
    X(link_duplex, 0, 1, KIND_FLASH)            /* 1: reads and writes have a link each */

/* Of flash, too, but they may be absent; see README.md. */
#define EXTRAS(X) \
    X(pause_every_bytes, 0, 1e15)   /* programmed; 0: not by what is written */ \
    X(pause_every_s, 0, 1e9)        /* from one pause's end to the next's; 0: not by time */ \
    X(pause_ms, 0.001, 1e12) \
    X(pause_factor, 1, 1e4)         /* work that begins in a pause takes so many times as long */ \
    X(slc_bytes, 0, 1e15)           /* of the SLC cache; 0: there is none */ \
    X(slc_factor, 1, 1e4)           /* a program that finds it full takes so many times as long */ \
    X(slc_empty_mb_s, 0, 1e6)       /* its way out, while nothing is programmed */ \
    X(extra_us, 0, 1e12)            /* of latency, between two times of the model */ \
    X(extra_from_s, 0, 1e9) \
    X(extra_to_s, 0, 1e9) \
    X(discard_mb_s, 1, 1e12)        /* absent: the device takes no discards */

struct params {
    enum kind kind;
#define X(name, ...) double name;
    PARAMS(X)
    EXTRAS(X)
#undef X
};

/* All absent; returns them. */
struct params params_none(void);

/* The words of an error; valid until the next call. */
__attribute__((format(printf, 1, 2))) const char *params_wrong(const char *format, ...);

/* Set a number that may have a suffix. Returns NULL, or the error. */
const char *params_number(double *number, const char *name, const char *value, double least,
                          double greatest);

/* Set one. Returns NULL, or its error; valid until the next call. */
const char *params_set(struct params *params, const char *name, const char *value);

/* Set all that a file has, in its order. */
const char *params_read(struct params *params, const char *path);

/* Is everything there, and does it make sense? NULL, or the error. */
const char *params_check(const struct params *params);

#endif
