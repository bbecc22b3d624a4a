/*
 * Recorded operator cases: a text file that describes small graphs and a GGUF file with the bytes
 * of their tensors. The format is the recorder's: one C line per case, one T line per tensor, E.
 */
#pragma once

#include "core/tensor.h"

#define OPS_SOURCES_MAX 10

struct ops_bytes {
        const uint8_t *data;
        uint64_t bytes;
};

struct ops_gguf_tensor {
        char name[64];
        uint32_t type;
        struct ops_bytes content;
};

struct ops_gguf {
        uint8_t *file;
        uint64_t file_bytes;
        uint64_t tensor_count;
        struct ops_gguf_tensor *tensors; /* by name */
};

enum { OPS_EXTRA_AFTER = 1, OPS_EXTRA_EXACT = 2 };

struct ops_tensor {
        char role; /* L leaf, I intermediate, O checked result */
        int op;    /* hr_op, -1 = none of ours */
        char op_name[32];
        uint32_t type, flags, extra, source_count;
        int64_t ne[HR_DIMS];
        uint64_t nb[HR_DIMS];
        int64_t view_base; /* -1 = own memory */
        uint64_t view_offset;
        bool is_stored;
        int32_t sources[OPS_SOURCES_MAX]; /* -1 = absent */
        int32_t params[HR_OP_PARAM_WORDS];
};

struct ops_case {
        uint32_t id, tensor_count, leaf_count, out;
        char op[48], metric[8], label[512];
        double tolerance, deviation;
        struct ops_tensor *tensors;
};

struct ops_family {
        char name[64];
        struct ops_gguf gguf;
        uint32_t case_count;
        struct ops_case *cases;
};

/* Reads PATH.txt and PATH.gguf (path without the ending). False, after words to stderr, when they
 * cannot be read. */
bool ops_family_read(const char *path, struct ops_family *ret_family);
void ops_family_free(struct ops_family *family);
/* Bytes of tensor `k` of a case; suffix "" , ".after" or ".exact". data is NULL when absent. */
struct ops_bytes ops_family_tensor(const struct ops_family *family, const struct ops_case *item,
                                   uint32_t k, const char *suffix);
