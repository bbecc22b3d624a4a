/*
 * Messages of session and administration, and what all parts of the codec share.
 *
 * What holds after a successful decode, whatever the peer sent: every string is NUL-terminated,
 * without a NUL inside, and valid UTF-8 (nanopb checks neither of the latter); every count is at
 * most its cap; every list lies in the caller's arena. Nanopb bounds all of its own writes by the
 * caps of headrace.options; callbacks take lists under the length of the message and the arena's
 * cap.
 *
 * A callback that fails says so to nanopb, which ends the whole decode; the reason "arena full" is
 * kept in the list, because then the message is not at fault.
 */
#include "proto/codec_priv.h"

#include "headrace.pb.h"

/* ---- text ------------------------------------------------------------------------------------ */

/* Length of the valid UTF-8 character at text, or 0. */
static size_t character_bytes(const uint8_t *text, size_t bytes) {
        uint8_t lead = text[0];
        size_t length;

        if (lead < 0x80)
                return lead != 0 ? 1 : 0;
        if (lead < 0xC2 || lead > 0xF4)
                return 0;
        length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        if (length > bytes)
                return 0;
        for (size_t i = 1; i < length; i++)
                if ((text[i] & 0xC0U) != 0x80)
                        return 0;
        if ((lead == 0xE0 && text[1] < 0xA0) || (lead == 0xED && text[1] > 0x9F) ||
            (lead == 0xF0 && text[1] < 0x90) || (lead == 0xF4 && text[1] > 0x8F))
                return 0;
        return length;
}

/* Bytes at the start of text that are plain ASCII without NUL, found eight at a time. */
static size_t ascii_prefix(const uint8_t *text, size_t bytes) {
        size_t i = 0;

        for (; i + 8 <= bytes; i += 8) {
                uint64_t word;

                memcpy(&word, text + i, sizeof word);
                if ((word | (word - UINT64_C(0x0101010101010101))) & UINT64_C(0x8080808080808080))
                        break;
        }
        return i;
}

bool hr_codec_text_is_valid(const char *text, size_t bytes) {
        const uint8_t *at = (const uint8_t *) text;
        size_t i = ascii_prefix(at, bytes);

        while (i < bytes) {
                size_t length = character_bytes(at + i, bytes - i);

                if (length == 0)
                        return false;
                i += length;
        }
        return true;
}

void hr_codec_text_copy(char *destination, size_t capacity, const char *text) {
        size_t bytes = text ? strlen(text) : 0;
        size_t used = 0;

        HR_ASSERT(capacity > 0);
        for (size_t i = 0; i < bytes;) {
                size_t length = character_bytes((const uint8_t *) text + i, bytes - i);
                size_t step = length ? length : 1;

                if (used + step > capacity - 1)
                        break;
                if (length)
                        memcpy(destination + used, text + i, length);
                else
                        destination[used] = '?';
                used += step;
                i += step;
        }
        destination[used] = '\0';
}

bool hr_codec_array_is_valid(const char *text, size_t capacity) {
        size_t bytes = strnlen(text, capacity);

        /* From the first NUL on each byte is the one before it. */
        return bytes < capacity &&
               memcmp(text + bytes, text + bytes + 1, capacity - bytes - 1) == 0 &&
               hr_codec_text_is_valid(text, bytes);
}

hr_status hr_codec_text_check(const char *text, size_t capacity, const char *field,
                              struct hr_diag *diag) {
        hr_status status;

        if (hr_codec_array_is_valid(text, capacity))
                return HR_OK;
        status = hr_fail_reason(diag, HR_E_INVALID, "UTF8", "%s is no valid UTF-8", field);
        if (diag)
                diag->field = field;
        return status;
}

hr_status hr_codec_text_keep(const char *text, struct hr_arena *arena, struct hr_diag *diag,
                             const char **ret_text) {
        const size_t bytes = strlen(text);
        char *copy;

        if (bytes == 0) {
                *ret_text = NULL;
                return HR_OK;
        }
        copy = hr_arena_alloc(arena, bytes + 1, 1);
        if (!copy)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT", "no room for a text");
        memcpy(copy, text, bytes + 1);
        *ret_text = copy;
        return HR_OK;
}

/* ---- whole messages -------------------------------------------------------------------------- */

hr_status hr_codec_decode(struct hr_wire_span message, const pb_msgdesc_t *fields,
                          void *destination, struct hr_diag *diag) {
        pb_istream_t stream = pb_istream_from_buffer(message.data, message.size);

        HR_ASSERT(message.data || message.size == 0);
        /* Zeros are every field's default: nanopb takes longer to set them than to decode. */
        if (!pb_decode_noinit(&stream, fields, destination))
                return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "message: %s",
                                      PB_GET_ERROR(&stream));
        return HR_OK;
}

hr_status hr_codec_too_long(size_t capacity, struct hr_diag *diag) {
        return hr_fail_reason(diag, HR_E_EXHAUSTED, "MESSAGE", "message over %zu bytes", capacity);
}

hr_status hr_codec_encode(const pb_msgdesc_t *fields, const void *source, uint8_t *buffer,
                          size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        pb_ostream_t stream = PB_OSTREAM_SIZING;

        if (buffer)
                stream = pb_ostream_from_buffer(buffer, capacity);
        if (!pb_encode(&stream, fields, source))
                return hr_codec_too_long(capacity, diag);
        *ret_bytes = stream.bytes_written;
        return HR_OK;
}

/* ---- lists ----------------------------------------------------------------------------------- */

void *hr_codec_list_extend(struct hr_codec_list *list, uint32_t more, size_t width) {
        uint64_t wanted = (uint64_t) list->count + more;
        char *items;

        if (wanted > UINT32_MAX / 2) {
                list->exhausted = true;
                return NULL;
        }
        if (wanted > list->capacity) {
                uint32_t capacity = (uint32_t) HR_MAX(wanted, (uint64_t) list->capacity * 2);

                items = hr_arena_alloc(list->arena, (uint64_t) capacity * width, 8);
                if (!items) {
                        list->exhausted = true;
                        return NULL;
                }
                if (list->count > 0)
                        memcpy(items, list->items, list->count * width);
                list->items = items;
                list->capacity = capacity;
        }
        items = list->items;
        items += list->count * width;
        list->count = (uint32_t) wanted;
        return items;
}

static bool numbers_take(pb_istream_t *stream, struct hr_codec_list *list, size_t width) {
        size_t bytes = stream->bytes_left;
        void *to;

        if (bytes % width != 0)
                return hr_codec_refuse(stream, "length of a list");
        if (bytes == 0)
                return true;
        to = hr_codec_list_extend(list, (uint32_t) (bytes / width), width);
        if (!to)
                return hr_codec_refuse(stream, "list too long");
        return pb_read(stream, to, bytes);
}

static bool take_fixed32(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        (void) field;
        return numbers_take(stream, *arg, sizeof(uint32_t));
}

static bool take_fixed64(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        (void) field;
        return numbers_take(stream, *arg, sizeof(uint64_t));
}

static const char *arena_text(struct hr_arena *arena, const char *text) {
        size_t bytes = strlen(text) + 1;
        char *copy = hr_arena_alloc(arena, bytes, 1);

        if (copy)
                memcpy(copy, text, bytes);
        return copy;
}

/* PlacementRule and Pin have the same fields; the generated structs are equal. */
static bool take_rule(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        headrace_v1_PlacementRule message = headrace_v1_PlacementRule_init_zero;
        struct hr_wire_rule *rule;

        (void) field;
        if (!pb_decode(stream, headrace_v1_PlacementRule_fields, &message))
                return false;
        if (!hr_codec_array_is_valid(message.pattern, sizeof message.pattern) ||
            !hr_codec_array_is_valid(message.device, sizeof message.device))
                return hr_codec_refuse(stream, "rule is no UTF-8");
        rule = hr_codec_list_extend(list, 1, sizeof *rule);
        if (!rule)
                return hr_codec_refuse(stream, "too many rules");
        rule->pattern = arena_text(list->arena, message.pattern);
        rule->device = arena_text(list->arena, message.device);
        if (!rule->pattern || !rule->device) {
                list->exhausted = true;
                return hr_codec_refuse(stream, "too many rules");
        }
        return true;
}

pb_callback_t hr_codec_list_fixed32(struct hr_codec_list *list) {
        return (pb_callback_t){.funcs.decode = take_fixed32, .arg = list};
}

pb_callback_t hr_codec_list_fixed64(struct hr_codec_list *list) {
        return (pb_callback_t){.funcs.decode = take_fixed64, .arg = list};
}

pb_callback_t hr_codec_list_rules(struct hr_codec_list *list) {
        return (pb_callback_t){.funcs.decode = take_rule, .arg = list};
}

static bool put_numbers(pb_ostream_t *stream, const pb_field_t *field, void *const *arg) {
        const struct hr_codec_numbers *numbers = *arg;
        size_t bytes = (size_t) numbers->count * numbers->width;

        if (bytes == 0)
                return true;
        return pb_encode_tag(stream, PB_WT_STRING, field->tag) &&
               pb_encode_string(stream, numbers->data, bytes);
}

pb_callback_t hr_codec_put_numbers(struct hr_codec_numbers *numbers) {
        return (pb_callback_t){.funcs.encode = put_numbers, .arg = numbers};
}

static bool put_items(pb_ostream_t *stream, const pb_field_t *field, void *const *arg) {
        const struct hr_codec_items *items = *arg;

        for (uint32_t i = 0; i < items->count; i++)
                if (!pb_encode_tag_for_field(stream, field) ||
                    !items->encode(stream, items->data, i))
                        return false;
        return true;
}

pb_callback_t hr_codec_put_items(struct hr_codec_items *items) {
        return (pb_callback_t){.funcs.encode = put_items, .arg = items};
}

hr_status hr_codec_list_check(const struct hr_codec_list *list, hr_status status,
                              struct hr_diag *diag) {
        if (status == HR_OK || !list->exhausted)
                return status;
        hr_diag_clear(diag);
        return hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT", "too many entries in a list");
}

/* ---- shared shapes --------------------------------------------------------------------------- */

hr_status hr_wire_empty_decode(struct hr_wire_span message, struct hr_diag *diag) {
        headrace_v1_Devices nothing = headrace_v1_Devices_init_zero;

        return hr_codec_decode(message, headrace_v1_Devices_fields, &nothing, diag);
}

hr_status hr_wire_fixed64_decode(struct hr_wire_span message, struct hr_diag *diag,
                                 uint64_t *ret_value) {
        headrace_v1_Ping value = headrace_v1_Ping_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_Ping_fields, &value, diag));
        *ret_value = value.cookie;
        return HR_OK;
}

hr_status hr_wire_fixed64_encode(uint64_t value, uint8_t *buffer, size_t capacity,
                                 struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_Ping message = {.cookie = value};

        return hr_codec_encode(headrace_v1_Ping_fields, &message, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_varint_decode(struct hr_wire_span message, struct hr_diag *diag,
                                uint64_t *ret_value) {
        headrace_v1_Credit value = headrace_v1_Credit_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_Credit_fields, &value, diag));
        *ret_value = value.bytes;
        return HR_OK;
}

hr_status hr_wire_varint_encode(uint64_t value, uint8_t *buffer, size_t capacity,
                                struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_Credit message = {.bytes = value};

        return hr_codec_encode(headrace_v1_Credit_fields, &message, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_credit_encode(uint64_t credit_bytes, uint64_t offset, uint8_t *buffer,
                                size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_Credit message = {.bytes = credit_bytes, .offset = offset};

        return hr_codec_encode(headrace_v1_Credit_fields, &message, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_credit_decode(struct hr_wire_span message, struct hr_diag *diag,
                                uint64_t *ret_bytes, uint64_t *ret_offset) {
        headrace_v1_Credit wire = headrace_v1_Credit_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_Credit_fields, &wire, diag));
        *ret_bytes = wire.bytes;
        *ret_offset = wire.offset;
        return HR_OK;
}

hr_status hr_wire_ops_reply_encode(uint32_t device_count, uint32_t node_count, uint8_t *buffer,
                                   size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_OpsReply message = {.device_count = device_count, .node_count = node_count};

        return hr_codec_encode(headrace_v1_OpsReply_fields, &message, buffer, capacity, diag,
                               ret_bytes);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static bool stat_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_stat *stat = (const struct hr_wire_stat *) data + index;
        headrace_v1_Stat message = {.value = stat->value};

        hr_codec_text_copy(message.name, sizeof message.name, stat->name);
        hr_codec_text_copy(message.labels, sizeof message.labels, stat->labels);
        return pb_encode_submessage(stream, headrace_v1_Stat_fields, &message);
}

hr_status hr_wire_stats_encode(const struct hr_wire_stat *stats, uint32_t count, uint8_t *buffer,
                               size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items items = {.data = stats, .count = count, .encode = stat_put};
        headrace_v1_Stats message = {.stats = hr_codec_put_items(&items)};

        return hr_codec_encode(headrace_v1_Stats_fields, &message, buffer, capacity, diag,
                               ret_bytes);
}
