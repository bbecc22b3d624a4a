/* Reading of recorded operator cases. A file that does not keep to its format ends the reading. */
#include "tests/golden/ops_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- GGUF ------------------------------------------------------------------------------------ */

struct cursor {
        const uint8_t *at, *end;
        bool is_broken;
};

static const uint8_t *take(struct cursor *cursor, uint64_t bytes) {
        const uint8_t *at = cursor->at;

        if (cursor->is_broken || bytes > (uint64_t) (cursor->end - cursor->at)) {
                cursor->is_broken = true;
                return NULL;
        }
        cursor->at += bytes;
        return at;
}

static uint32_t take_u32(struct cursor *cursor) {
        const uint8_t *at = take(cursor, sizeof(uint32_t));
        uint32_t value = 0;

        if (at)
                memcpy(&value, at, sizeof value);
        return value;
}

static uint64_t take_u64(struct cursor *cursor) {
        const uint8_t *at = take(cursor, sizeof(uint64_t));
        uint64_t value = 0;

        if (at)
                memcpy(&value, at, sizeof value);
        return value;
}

static void take_string(struct cursor *cursor, char *text, size_t room) {
        uint64_t bytes = take_u64(cursor);
        const uint8_t *at = take(cursor, bytes);

        text[0] = '\0';
        if (!at)
                return;
        if (bytes >= room) {
                cursor->is_broken = true;
                return;
        }
        memcpy(text, at, (size_t) bytes);
        text[bytes] = '\0';
}

static void skip_value(struct cursor *cursor, uint32_t type) {
        static const uint8_t sizes[] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
        char text[256];

        if (type == 8)
                take_string(cursor, text, sizeof text);
        else if (type < HR_ARRAY_LENGTH(sizes) && sizes[type])
                (void) take(cursor, sizes[type]);
        else
                cursor->is_broken = true; /* arrays do not occur here */
}

static int tensor_compare(const void *a, const void *b) {
        return strcmp(((const struct ops_gguf_tensor *) a)->name,
                      ((const struct ops_gguf_tensor *) b)->name);
}

static void take_tensor(struct cursor *cursor, struct ops_gguf_tensor *tensor,
                        uint64_t *ret_offset) {
        uint64_t rows = 1, row_bytes = 0;
        uint32_t dims;
        int64_t first = 1;

        take_string(cursor, tensor->name, sizeof tensor->name);
        dims = take_u32(cursor);
        for (uint32_t i = 0; i < dims && !cursor->is_broken; i++) {
                uint64_t extent = take_u64(cursor);

                if (i == 0)
                        first = (int64_t) extent;
                else
                        rows *= extent;
        }
        tensor->type = take_u32(cursor);
        *ret_offset = take_u64(cursor);
        if (!hr_type_row_bytes(tensor->type, first, &row_bytes))
                cursor->is_broken = true;
        tensor->content.bytes = row_bytes * rows;
}

static bool gguf_parse(struct ops_gguf *gguf) {
        struct cursor cursor = { gguf->file, gguf->file + gguf->file_bytes, false };
        const uint8_t *magic = take(&cursor, 4);
        uint64_t key_count, start, *offsets;
        char key[256];

        if (!magic || memcmp(magic, "GGUF", 4) != 0 || take_u32(&cursor) != 3)
                return false;
        gguf->tensor_count = take_u64(&cursor);
        key_count = take_u64(&cursor);
        for (uint64_t i = 0; i < key_count && !cursor.is_broken; i++) {
                take_string(&cursor, key, sizeof key);
                skip_value(&cursor, take_u32(&cursor));
        }
        if (cursor.is_broken || gguf->tensor_count > gguf->file_bytes)
                return false;
        gguf->tensors = calloc((size_t) gguf->tensor_count + 1, sizeof *gguf->tensors);
        offsets = calloc((size_t) gguf->tensor_count + 1, sizeof *offsets);
        if (!gguf->tensors || !offsets) {
                free(offsets);
                return false;
        }
        for (uint64_t i = 0; i < gguf->tensor_count; i++)
                take_tensor(&cursor, &gguf->tensors[i], &offsets[i]);
        start = ((uint64_t) (cursor.at - gguf->file) + 31) / 32 * 32;
        for (uint64_t i = 0; i < gguf->tensor_count && !cursor.is_broken; i++) {
                struct ops_bytes *content = &gguf->tensors[i].content;

                if (start > gguf->file_bytes || offsets[i] > gguf->file_bytes - start ||
                    content->bytes > gguf->file_bytes - start - offsets[i]) {
                        cursor.is_broken = true;
                        break; /* not even a pointer may lead out of the file */
                }
                content->data = gguf->file + start + offsets[i];
        }
        free(offsets);
        qsort(gguf->tensors, (size_t) gguf->tensor_count, sizeof *gguf->tensors, tensor_compare);
        return !cursor.is_broken;
}

static uint8_t *file_read(const char *path, uint64_t *ret_bytes) {
        FILE *file = fopen(path, "rbe");
        uint8_t *content = NULL;
        long size;

        if (!file) {
                perror(path);
                return NULL;
        }
        if (fseek(file, 0, SEEK_END) == 0 && (size = ftell(file)) >= 0 &&
            fseek(file, 0, SEEK_SET) == 0 && (content = malloc((size_t) size + 1)) &&
            fread(content, 1, (size_t) size, file) == (size_t) size) {
                content[size] = '\0';
                *ret_bytes = (uint64_t) size;
        } else {
                fprintf(stderr, "%s: cannot be read\n", path);
                free(content);
                content = NULL;
        }
        (void) fclose(file);
        return content;
}

/* ---- Text ------------------------------------------------------------------------------------ */

static bool parse_params(const char *word, int32_t params[HR_OP_PARAM_WORDS]) {
        if (strcmp(word, "-") == 0)
                return true;
        for (int i = 0; i < HR_OP_PARAM_WORDS && *word; i++) {
                char *end;
                uint32_t value = (uint32_t) strtoul(word, &end, 16);

                if (end == word)
                        return false;
                params[i] = (int32_t) value;
                word = *end == ',' ? end + 1 : end;
        }
        return *word == '\0';
}

static bool next_i64(char **save, int64_t *ret_value) {
        const char *word = strtok_r(NULL, " ", save);
        char *end;

        if (!word)
                return false;
        *ret_value = strtoll(word, &end, 10);
        return *end == '\0';
}

/* After "T": <k> <role> <OP> <SUB> <type> <type_id> ne nb flags view ... */
static bool parse_tensor(char **save, uint32_t expected_k, struct ops_tensor *tensor) {
        int64_t k, value[14], source;
        const char *role, *op, *params;

        if (!next_i64(save, &k) || k != (int64_t) expected_k)
                return false;
        role = strtok_r(NULL, " ", save);
        op = strtok_r(NULL, " ", save);
        if (!role || !op || !strtok_r(NULL, " ", save) || !strtok_r(NULL, " ", save))
                return false;
        tensor->role = role[0];
        (void) snprintf(tensor->op_name, sizeof tensor->op_name, "%s", op);
        tensor->op = hr_op_from_name(op);
        for (int i = 0; i < 14; i++)
                if (!next_i64(save, &value[i]))
                        return false;
        tensor->type = (uint32_t) value[0];
        for (int i = 0; i < HR_DIMS; i++) {
                tensor->ne[i] = value[1 + i];
                tensor->nb[i] = (uint64_t) value[5 + i];
        }
        tensor->flags = (uint32_t) value[9];
        tensor->view_base = value[10];
        tensor->view_offset = (uint64_t) value[11];
        tensor->is_stored = value[12] != 0;
        tensor->extra = (uint32_t) value[13];
        if (!next_i64(save, &source) || source < 0 || source > OPS_SOURCES_MAX)
                return false;
        tensor->source_count = (uint32_t) source;
        for (uint32_t i = 0; i < tensor->source_count; i++) {
                if (!next_i64(save, &source))
                        return false;
                tensor->sources[i] = (int32_t) source;
        }
        params = strtok_r(NULL, " ", save);
        return params && parse_params(params, tensor->params);
}

/* C <id> <op> <metric> <tol> <dev> <n_tensors> <n_leafs> <out> <label> */
static bool parse_case(const char *line, struct ops_case *item) {
        if (sscanf(line, "C %" SCNu32 " %47s %7s %lf %lf %" SCNu32 " %" SCNu32 " %" SCNu32
                         " %511s",
                   &item->id, item->op, item->metric, &item->tolerance, &item->deviation,
                   &item->tensor_count, &item->leaf_count, &item->out, item->label) < 8)
                return false;
        if (item->tensor_count > 100000 || item->leaf_count > item->tensor_count)
                return false;
        item->tensors = calloc(item->tensor_count + (size_t) 1, sizeof *item->tensors);
        return item->tensors != NULL;
}

static bool text_parse(char *text, struct ops_family *family) {
        struct ops_case *item = NULL;
        uint32_t k = 0, case_room = 0;
        char *save_line = NULL;

        for (char *line = strtok_r(text, "\n", &save_line); line;
             line = strtok_r(NULL, "\n", &save_line)) {
                char *save = NULL;

                if (line[0] == 'G') {
                        if (sscanf(line, "G golden-ops 1 %63s %" SCNu32, family->name,
                                   &case_room) != 2 || case_room > 1000000)
                                return false;
                        family->cases = calloc(case_room + (size_t) 1, sizeof *family->cases);
                        if (!family->cases)
                                return false;
                } else if (line[0] == 'C') {
                        if (family->case_count == case_room)
                                return false;
                        item = &family->cases[family->case_count++];
                        k = 0;
                        if (!parse_case(line, item))
                                return false;
                } else if (line[0] == 'T') {
                        (void) strtok_r(line, " ", &save);
                        if (!item || k == item->tensor_count ||
                            !parse_tensor(&save, k, &item->tensors[k]))
                                return false;
                        k++;
                } else if (line[0] == 'E' && (!item || k != item->tensor_count)) {
                        return false;
                }
        }
        return family->case_count == case_room;
}

/* ---- Family ---------------------------------------------------------------------------------- */

bool ops_family_read(const char *path, struct ops_family *ret_family) {
        struct ops_family family = { 0 };
        char name[4096];
        uint64_t bytes;
        char *text;
        bool good;

        (void) snprintf(name, sizeof name, "%s.txt", path);
        text = (char *) file_read(name, &bytes);
        if (!text)
                return false;
        good = text_parse(text, &family);
        free(text);
        if (good) {
                (void) snprintf(name, sizeof name, "%s.gguf", path);
                family.gguf.file = file_read(name, &family.gguf.file_bytes);
                good = family.gguf.file && gguf_parse(&family.gguf);
        }
        if (!good) {
                fprintf(stderr, "%s: not in the format of recorded operators\n", name);
                ops_family_free(&family);
                return false;
        }
        *ret_family = family;
        return true;
}

void ops_family_free(struct ops_family *family) {
        for (uint32_t i = 0; i < family->case_count; i++)
                free(family->cases[i].tensors);
        free(family->cases);
        free(family->gguf.tensors);
        free(family->gguf.file);
}

struct ops_bytes ops_family_tensor(const struct ops_family *family, const struct ops_case *item,
                                   uint32_t k, const char *suffix) {
        struct ops_gguf_tensor key, *found;

        (void) snprintf(key.name, sizeof key.name, "c%" PRIu32 ".t%" PRIu32 "%s", item->id, k,
                        suffix);
        found = bsearch(&key, family->gguf.tensors, (size_t) family->gguf.tensor_count, sizeof key,
                        tensor_compare);
        return found ? found->content : (struct ops_bytes) { 0 };
}
