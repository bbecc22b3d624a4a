/*
 * What validation demands of each op, as tables: a node that is right, then changes of one thing
 * that make it wrong, each with the reason and the words of its refusal. refusal.c runs a table and
 * tries by itself, for every node, what can be tried without knowing the op: sources that are
 * missing or too many, every other type and layout of each source, results declared otherwise,
 * parameters that the op has no use for.
 */
#pragma once

#include <limits.h>

#include "core/graph.h"

#define REFUSAL_SOURCES 7
#define REFUSAL_CHANGES 5

struct refusal_shape {
        uint32_t type;
        int64_t ne[HR_DIMS];
};

#define F32(...) { HR_TYPE_F32, { __VA_ARGS__ } }
#define F16(...) { HR_TYPE_F16, { __VA_ARGS__ } }
#define I32(...) { HR_TYPE_I32, { __VA_ARGS__ } }
#define I64(...) { HR_TYPE_I64, { __VA_ARGS__ } }

/* One thing that is otherwise than in the right node. `own` is the node itself. */
enum refusal_what {
        REFUSAL_NOTHING,
        REFUSAL_TYPE,     /* of source `at` */
        REFUSAL_NE,       /* extent `which` of source `at` */
        REFUSAL_GAPS,     /* the elements of a row of source `at` lie apart */
        REFUSAL_APART,    /* the rows of source `at` are dense and lie apart */
        REFUSAL_ABSENT,   /* there is no source `at` */
        REFUSAL_WORD,     /* parameter `at` */
        REFUSAL_OWN_TYPE, /* declared */
        REFUSAL_OWN_NE,
        REFUSAL_OWN_NB,
        REFUSAL_OWN_OFFSET,
};

struct refusal_change {
        int what, at, which;
        int64_t value;
};

#define TYPE(source, name) { REFUSAL_TYPE, source, 0, HR_TYPE_##name }
#define NE(source, dim, extent) { REFUSAL_NE, source, dim, extent }
#define GAPS(source) { REFUSAL_GAPS, source, 0, 0 }
#define APART(source) { REFUSAL_APART, source, 0, 0 }
#define ABSENT(source) { REFUSAL_ABSENT, source, 0, 0 }
#define WORD(word, value) { REFUSAL_WORD, word, 0, value }
#define OWN_TYPE(name) { REFUSAL_OWN_TYPE, 0, 0, HR_TYPE_##name }
#define OWN_NE(dim, extent) { REFUSAL_OWN_NE, 0, dim, extent }
#define OWN_NB(dim, bytes) { REFUSAL_OWN_NB, 0, dim, bytes }
#define OWN_OFFSET(bytes) { REFUSAL_OWN_OFFSET, 0, 0, bytes }

/* Floats as parameters. */
#define ONE 0x3f800000
#define EIGHT 0x41000000
#define TINY 0x00000001
#define MINUS_ONE (-0x40800000)
#define INFINITE 0x7f800000
#define NOT_A_NUMBER 0x7fc00000
/* Extents that only an empty tensor can have. */
#define HALF_OF_63_BITS (INT64_C(1) << 62)
#define MOST INT64_MAX

struct refusal {
        const char *reason, *words;
        struct refusal_change changes[REFUSAL_CHANGES];
};

/* Free of what is declared: inference takes it from the node. */
#define FREE_TYPE 1U
#define FREE_SHAPE 2U
#define FREE_PARAMS 4U /* uses all words */

struct refusal_node {
        uint32_t op;
        struct refusal_shape own;
        uint32_t source_count;
        struct refusal_shape sources[REFUSAL_SOURCES];
        int32_t params[HR_OP_PARAM_WORDS];
        /* For each source the types that it may have while all else stays: f32 is f, f16 h, bf16 b,
         * i32 i, i64 l; others never alone. NULL: any. */
        const char *types[REFUSAL_SOURCES];
        uint32_t dense, contiguous; /* bits: sources that must have dense rows,
          must be contiguous */
        uint32_t free;
        const struct refusal *refusals; /* up to one without a reason */
};

#define REFUSALS(...) (const struct refusal[]) { __VA_ARGS__, { NULL, NULL, { { 0 } } } }
#define NO_REFUSALS (const struct refusal[]) { { NULL, NULL, { { 0 } } } }

struct refusal_table {
        const char *name;
        const struct refusal_node *nodes;
        size_t count;
};

extern const struct refusal_table refusals_of_shape, refusals_of_math, refusals_of_matrix,
        refusals_of_conv, refusals_of_recurrent;

/* Is told of each node `id` that validation accepts; NULL: nobody is. */
extern void (*refusal_accepted)(const struct hr_graph *graph, uint32_t id);
/* Runs a table; marks the ops that it has. Ends the test at the first node that is judged
 * otherwise. */
void refusal_table_run(const struct refusal_table *table, bool seen[HR_OP_LIMIT]);
