/* What the codec's files share: text rules, whole messages, lists in arenas. */
#pragma once

#include <string.h>

#include <pb_decode.h>
#include <pb_encode.h>

#include "proto/codec.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "columns are taken as they lie on the wire, which is little-endian"
#endif

/* True for valid UTF-8 without NUL: no overlong form, no surrogate, nothing above U+10FFFF. */
bool hr_codec_text_is_valid(const char *text, size_t bytes);
/* Copies at most capacity - 1 bytes, cut at the start of a character, and ends with NUL. Bytes that
 * are no UTF-8 become '?'. NULL counts as empty. */
void hr_codec_text_copy(char *destination, size_t capacity, const char *text);

/* pb_decode of a whole message into a generated struct, which is zero but for its callbacks. */
HR_NODISCARD hr_status hr_codec_decode(struct hr_wire_span message, const pb_msgdesc_t *fields,
                                       void *destination, struct hr_diag *diag);
/* pb_encode; NULL only measures. */
HR_NODISCARD hr_status hr_codec_encode(const pb_msgdesc_t *fields, const void *source,
                                       uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                                       size_t *ret_bytes);
/* The failure of an encode. */
hr_status hr_codec_too_long(size_t capacity, struct hr_diag *diag);
/* For a decode callback: why it ends the decoding. */
static inline bool hr_codec_refuse(pb_istream_t *stream, const char *words) {
        stream->errmsg = words;
        return false;
}
/* HR_E_INVALID with reason UTF8 and the field unless the decoded string of a zeroed struct is
 * valid. A NUL inside is found by what stands behind it. */
HR_NODISCARD hr_status hr_codec_text_check(const char *text, size_t capacity, const char *field,
                                           struct hr_diag *diag);
bool hr_codec_array_is_valid(const char *text, size_t capacity);

/* The decoded string in the arena: hr_codec_text_check() first. NULL for an empty one.
 * HR_E_EXHAUSTED when the arena is full. */
HR_NODISCARD hr_status hr_codec_text_keep(const char *text, struct hr_arena *arena,
                                          struct hr_diag *diag, const char **ret_text);

/* A growing list in an arena, filled by a decode callback. */
struct hr_codec_list {
        struct hr_arena *arena;
        void *items;
        uint32_t count, capacity;
        bool exhausted; /* the arena was full: not the message's fault */
};

/* Room for `more` further items of `width` bytes; NULL when the arena is full. */
void *hr_codec_list_extend(struct hr_codec_list *list, uint32_t more, size_t width);
/* Callbacks of repeated fields: packed or single fixed32/fixed64 numbers, and glob rules. */
pb_callback_t hr_codec_list_fixed32(struct hr_codec_list *list);
pb_callback_t hr_codec_list_fixed64(struct hr_codec_list *list);
pb_callback_t hr_codec_list_rules(struct hr_codec_list *list);

/* Passes a decode's status on; when the list's arena was full it is HR_E_EXHAUSTED (reason LIMIT).
 * diag is not NULL. */
HR_NODISCARD hr_status hr_codec_list_check(const struct hr_codec_list *list, hr_status status,
                                           struct hr_diag *diag);

/* Numbers to encode as one packed field, and submessages to encode one by one. */
struct hr_codec_numbers {
        const void *data;
        uint32_t count;
        uint32_t width; /* 4 or 8 */
};
pb_callback_t hr_codec_put_numbers(struct hr_codec_numbers *numbers);

struct hr_codec_items {
        const void *data;
        uint32_t count;
        /* Encodes item i as a submessage; the tag is already written. */
        bool (*encode)(pb_ostream_t *stream, const void *data, uint32_t index);
};
pb_callback_t hr_codec_put_items(struct hr_codec_items *items);

/* An item of struct hr_wire_device_bytes. */
bool hr_codec_device_bytes_put(pb_ostream_t *stream, const void *data, uint32_t index);

/* A Submit within a message; the tag is already written. */
bool hr_codec_submit_put(pb_ostream_t *stream, const struct hr_wire_submit *submit);

/* A RUN without anything unusual. False, without a word: it is for nanopb. */
bool hr_codec_run_plain(struct hr_wire_span message, struct hr_arena *arena,
                        struct hr_wire_run *ret_run);

/* An item of struct hr_wire_rule. */
bool hr_codec_rule_put(pb_ostream_t *stream, const void *data, uint32_t index);
