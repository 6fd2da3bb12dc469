"""An exception that is set for a thread of the program while it starts one of ours reaches the program."""

import sys

import pytest

STOPPED_AS_A_THREAD_BEGINS = """
    import ctypes, threading, time
    from sglang_instrument.recording.safety.unpatched import Thread

    class Stop(BaseException): pass

    # Python's own start of a thread, then an exception at a moment at which another thread may set it, too
    usual = threading._start_new_thread
    def start_and_stop(*call):
        begun = usual(*call)
        ident, kind = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(Stop)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, kind)
        return begun

    arrived, ran = [], []

    def work():
        threading._start_new_thread = start_and_stop
        for _ in range(100):
            own = Thread(lambda: ran.append(1), "own")
            try:
                own.start()
                for _ in range(10_000): time.sleep(0.001)
            except Stop: arrived.append(1)
            own.join(60)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print(len(arrived), len(ran))
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a thread has its own identity at once")
def test_an_exception_that_gets_to_our_new_thread_instead_of_its_starter_is_passed_on(start_script):
    assert start_script(STOPPED_AS_A_THREAD_BEGINS).wait(timeout=60).stdout == "100 100\n"
