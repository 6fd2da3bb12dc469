# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# cython: auto_pickle=False, embedsignature=False, binding=False, nonecheck=False
"""recording/keep/encoder.py, compiled: turn finished spans into lines of JSON, without an object per line.

Usual values are encoded here. The pure encoder starts again with a record that has any other value, or is too
long for a line; it can encode every value. Nothing in here runs Python code between the first and the last
byte of a record, so that no other thread changes the values meanwhile.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_AsUnsignedLongLong
from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from libc.string cimport memcpy
from sglang_instrument.recording.measure._context cimport Context
from sglang_instrument.recording.measure._spans cimport NOT_COUNTED, Span
from sglang_instrument.recording.measure._tasks cimport Task, now_ns
from sglang_instrument.recording.keep._text cimport (
    CANNOT,
    DONE,
    ENOUGH,
    Text,
    keep,
    let_go,
    make_room,
    put,
    put_again,
    put_decimal,
    put_digits,
    put_float,
    put_integer,
    put_padded,
    put_short,
    put_string,
)

include "sglang_instrument/native/module.pxi"

cdef enum:
    LONGEST_LINE = 64 * 1024  # bytes; line_types.py says the same
    # Encoded at once, while other threads wait for the GIL: usually for a tenth of a millisecond.
    CHUNK = 1024  # spans
    CHUNK_BYTES = 256 * 1024
    NS_OF_A_BYTE = 4  # a chunk of records for the pure encoder takes a millisecond
    SMALL = 128  # bytes: room for a key and a number

include "sglang_instrument/recording/keep/_json.pxi"
include "sglang_instrument/recording/keep/_line_parts.pxi"


@cython.final
cdef class LineEncoder:
    """Encode spans; used by one thread at a time.

    Args:
        offset_us: What to add to microseconds of the monotonic clock for those since the Unix epoch.
        timestamp: Returns ISO 8601 of microseconds since the Unix epoch.
        scope_of: Returns the scope of a context that has none.
        thread_task: Returns the task that stands for a thread.
        encode_span: Returns the line of any span, and whether it had to be changed; None if that failed.
    """

    cdef long long offset_us
    cdef object timestamp, scope_of, thread_task, encode_span
    cdef Sink first  # keeps its memory from chunk to chunk
    cdef dict sinks  # of this chunk, by scope, if there is more than one
    cdef Sink sink  # of the last span
    cdef object context, scope
    cdef Part part
    cdef object placed  # the scope that `place` and `validate` belong to
    cdef bytes place
    cdef bint validate
    cdef Text scratch
    cdef unsigned long thread
    cdef Task of_thread
    # The timestamp of the second in which the last span ended: up to the microseconds, and what comes after.
    cdef long long second
    cdef char[64] before
    cdef char[64] after
    cdef Py_ssize_t size_before, size_after

    def __init__(self, offset_us, timestamp, scope_of, thread_task, encode_span):
        self.offset_us, self.second = offset_us, -1
        self.timestamp, self.scope_of, self.thread_task = timestamp, scope_of, thread_task
        self.encode_span = encode_span
        self.first = Sink.__new__(Sink)

    def __dealloc__(self):
        let_go(&self.scratch)

    def encode_chunk(self, list spans not None, Py_ssize_t begin):
        """Encode the next spans of a list; see LineEncoder.encode_chunk()."""
        cdef Py_ssize_t end = begin, stop = begin + CHUNK, left = CHUNK_BYTES
        self.context = self.part = self.of_thread = self.sink = None  # cached values may be stale
        try:
            while end < stop and end < PyList_GET_SIZE(spans) and left > 0:
                left -= self.add(spans[end])
                if end < PyList_GET_SIZE(spans):  # the pure encoder may have let other threads change the list
                    spans[end] = None
                end += 1
        finally:  # after an error (only MemoryError), keep nothing for the next chunk
            pieces = self.take()
            self.context = self.part = self.scope = self.placed = self.of_thread = None  # break cycles
        return end, pieces

    cdef list take(self):
        """Return the pieces of this chunk, one per scope."""
        cdef list pieces = []
        cdef Sink sink
        for sink in (self.first,) if self.sinks is None else self.sinks.values():
            if sink.records:
                lines = PyBytes_FromStringAndSize(sink.text.data, sink.text.size)
                pieces.append((sink.scope, lines, sink.changed, sink.records))
            sink.text.size = sink.records = sink.changed = 0
            if sink.text.room > ENOUGH:
                let_go(&sink.text)
        self.sinks = self.sink = self.first.scope = None
        return pieces

    cdef Py_ssize_t add(self, object added) except -1:
        """Put the line of a span; return its size in bytes, or more if it took longer than its size suggests."""
        cdef Span span
        cdef Text *text
        cdef Py_ssize_t begin
        cdef long long before_ns
        cdef Task task
        if not isinstance(added, Span) or not isinstance((<Span>added).context, Context):
            self.encode_span(added, None, None, None)  # fails, and logs a notice
            return 0
        span = <Span>added
        if span.context is not self.context:
            self.enter(span.context)
        task = span.task
        if task is None:
            if self.of_thread is None or span.thread != self.thread:
                self.of_thread, self.thread = self.thread_task(span.thread), span.thread
            task = self.of_thread
        spawned_by = None
        if task.first_logged_by is not self:
            task.first_logged_by, spawned_by = self, task.spawned_by
        text, sink = &self.sink.text, self.sink
        begin = text.size
        if self.put_line(text, span, task, spawned_by) == DONE and text.size - begin <= LONGEST_LINE:
            sink.records += 1
        else:
            text.size = begin
            before_ns = now_ns()
            made = self.encode_span(span, self.scope, task, spawned_by)
            if made is not None:
                line, changed = made
                make_room(text, len(<bytes>line))
                put(text, PyBytes_AS_STRING(line), len(<bytes>line))
                sink.changed += changed
                sink.records += 1
            return (now_ns() - before_ns) // NS_OF_A_BYTE
        return text.size - begin

    cdef int enter(self, object entered) except -1:
        """Look up the common part and the sink of the records of another context."""
        cdef Context context = entered
        part, scope = context.shared_json, context.scope
        if scope is None:
            scope = self.scope_of(context)
        if type(part) is not Part or (<Part>part).scope is not scope:
            part = context.shared_json = self.part_of(context, scope)
        if self.sink is None or self.scope is not scope:
            self.sink = self.sink_of(scope)
        self.part, self.scope, self.context = part, scope, context
        return 0

    cdef Sink sink_of(self, object scope):
        cdef Sink sink
        if self.first.scope is None:
            self.first.scope = scope
        if self.first.scope is scope:
            return self.first
        if self.sinks is None:
            self.sinks = {self.first.scope: self.first}
        sink = self.sinks.get(scope)
        if sink is None:
            sink = self.sinks[scope] = Sink.__new__(Sink)
            sink.scope = scope
        return sink

    cdef Part part_of(self, Context context, object scope):
        cdef Part part = Part.__new__(Part)
        cdef Text *text = &self.scratch
        cdef Py_ssize_t size_extra = 0
        if scope is not self.placed:
            self.know_place(scope)
        part.scope, part.validate = scope, self.validate
        text.size = 0
        make_room(text, SMALL)
        put(text, ',"extra":{', 10)
        part.cannot = put_ids(text, context) != DONE
        if text.size == 10:
            text.size = 0
        else:
            make_room(text, 1)
            put(text, "}", 1)
            size_extra = text.size
        make_room(text, PyBytes_GET_SIZE(self.place))
        put(text, PyBytes_AS_STRING(self.place), PyBytes_GET_SIZE(self.place))
        keep(&part.text, text)
        part.place, part.size_place = part.text.data + size_extra, part.text.size - size_extra
        if size_extra:
            part.ids, part.size_ids = part.text.data + 10, size_extra - 11
        return part

    cdef int know_place(self, object scope) except -1:
        """Cache the keys that all contexts of a scope share."""
        place = f',"workid":{scope.worker:d}'
        if scope.step is not None:
            place += f',"step":{scope.step:d}'
        self.place, self.validate, self.placed = place.encode("ascii"), scope.validate, scope
        return 0

    cdef int put_line(self, Text *text, Span span, Task task, object spawned_by) except -1:
        """Put the keys of a span in the order of schema.KEYS; return CANNOT if one needs the pure encoder."""
        cdef long long ended_us
        cdef Py_ssize_t duration_at = 0, duration_size = 0
        cdef Part part = self.part
        if part.cannot or type(span.event) is not str:
            return CANNOT
        ended_us = floor_us(span.end or span.start) + self.offset_us
        if self.put_timestamp(text, ended_us) == CANNOT or put_name(text, span.event) == CANNOT:
            return CANNOT
        make_room(text, 6 * SMALL + part.text.size)
        if span.end:
            put(text, ',"duration_sec":', 16)
            duration_at = text.size
            put_seconds(text, span.end - span.start)
            duration_size = text.size - duration_at
        if span.extra is None:
            put(text, part.text.data, part.text.size)
        elif self.put_extra(text, part, span) == CANNOT:
            return CANNOT
        make_room(text, 6 * SMALL)
        if span.end:
            put(text, ',"start_us":', 12)
            put_integer(text, floor_us(span.start) + self.offset_us)
        put(text, ',"task":', 8)
        put_integer(text, task.number)
        if spawned_by is not None:
            put(text, ',"spawned_by":', 14)
            put_integer(text, spawned_by)
        if span.waited_ns != NOT_COUNTED and span.end:
            put(text, ',"active_sec":', 14)
            if span.waited_ns == 0 and span.end >= span.start:  # the same number as duration_sec
                put_again(text, duration_at, duration_size)
            else:
                put_seconds(text, max(0, span.end - span.start - span.waited_ns))
        if span.device_sec is not None:
            make_room(text, SMALL)
            put(text, ',"device_sec":', 14)
            if put_value(text, span.device_sec, 0) == CANNOT:
                return CANNOT
        if put_key_if_any(text, ',"error":', 9, span.error) == CANNOT:
            return CANNOT
        if part.validate:
            make_room(text, SMALL)
            put(text, ',"validate":true', 16)
        if put_key_if_any(text, ',"phase":', 9, span.phase) == CANNOT:
            return CANNOT
        make_room(text, SMALL)
        put(text, "}\n", 2)
        return DONE

    cdef int put_timestamp(self, Text *text, long long ended_us) except -1:
        """Put the beginning of a line, up to the value of "event"."""
        cdef long long second
        if ended_us < 0:  # before 1970
            return CANNOT
        second = ended_us // 1_000_000
        if second != self.second:
            if self.know_second(second) == CANNOT:
                return CANNOT
        make_room(text, 4 * SMALL)
        put_short(text, self.before, self.size_before)
        put_padded(text, ended_us - second * 1_000_000, 6)
        put_short(text, self.after, self.size_after)
        return DONE

    cdef int know_second(self, long long second) except -1:
        said = self.timestamp(second * 1_000_000)
        before = b'{"timestamp":"' + said[:20].encode("ascii")
        after = said[26:].encode("ascii") + b'","event":'
        if len(before) > 64 or len(after) > 64:
            return CANNOT
        self.size_before, self.size_after = len(before), len(after)
        memcpy(self.before, PyBytes_AS_STRING(before), self.size_before)
        memcpy(self.after, PyBytes_AS_STRING(after), self.size_after)
        self.second = second
        return DONE

    cdef int put_extra(self, Text *text, Part part, Span span) except -1:
        """Put the bound ids, the span's own fields, which override them, and the worker and step."""
        if type(span.extra) is not dict:
            return CANNOT
        fields = <dict>span.extra
        if not fields:
            put(text, part.text.data, part.text.size)
            return DONE
        make_room(text, SMALL + part.size_ids)
        put(text, ',"extra":{', 10)
        if "request_id" in fields or "turn" in fields or "agent" in fields or "parent_request" in fields:
            fields = {**((<Context>span.context).ids() or {}), **fields}
        elif part.size_ids:
            put(text, part.ids, part.size_ids)
            put(text, ",", 1)
        if put_fields(text, fields, 0) == CANNOT:
            return CANNOT
        make_room(text, SMALL + part.size_place)
        put(text, "}", 1)
        put(text, part.place, part.size_place)
        return DONE
