/*
 * Messages that are written from columns as they lie in memory: Explanation and Trace. The caller
 * names each field with its number and form; nothing is copied before it is written.
 */
#include "proto/fields.h"

#include "proto/codec_priv.h"

static bool put_blob(pb_ostream_t *stream, uint32_t number, const void *data, uint64_t bytes) {
        return bytes <= SIZE_MAX && pb_encode_tag(stream, PB_WT_STRING, number) &&
               pb_encode_string(stream, data, (size_t) bytes);
}

/* Names of devices and the like: what is no text would spoil the whole message. */
static bool put_text(pb_ostream_t *stream, uint32_t number, const char *text) {
        char clean[256];

        hr_codec_text_copy(clean, sizeof clean, text);
        return put_blob(stream, number, clean, strlen(clean));
}

static bool put_field(pb_ostream_t *stream, const struct hr_wire_field *field) {
        const char *const *texts = field->data;

        switch (field->form) {
        case HR_WIRE_NUMBER:
                return field->count == 0 || (pb_encode_tag(stream, PB_WT_VARINT, field->number) &&
                                             pb_encode_varint(stream, field->count));
        case HR_WIRE_TEXT:
                return put_text(stream, field->number, field->data);
        case HR_WIRE_TEXTS:
                for (uint64_t i = 0; i < field->count; i++)
                        if (!put_text(stream, field->number, texts[i]))
                                return false;
                return true;
        case HR_WIRE_BYTES:
                return field->count == 0 ||
                       put_blob(stream, field->number, field->data, field->count);
        case HR_WIRE_WORDS:
                return field->count == 0 ||
                       put_blob(stream, field->number, field->data, field->count * 4);
        case HR_WIRE_LONGS:
                return field->count == 0 ||
                       put_blob(stream, field->number, field->data, field->count * 8);
        }
        return false;
}

hr_status hr_wire_fields_encode(const struct hr_wire_field *fields, uint32_t count, uint8_t *buffer,
                                size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        pb_ostream_t stream = PB_OSTREAM_SIZING;

        if (buffer)
                stream = pb_ostream_from_buffer(buffer, capacity);
        for (uint32_t i = 0; i < count; i++)
                if (!put_field(&stream, &fields[i]))
                        return hr_fail_reason(diag, HR_E_EXHAUSTED, "MESSAGE",
                                              "a message does not fit %zu bytes", capacity);
        *ret_bytes = stream.bytes_written;
        return HR_OK;
}
