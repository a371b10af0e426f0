"""A module whose extension has an allocator of its own, in an interpreter that runs threads and forks."""
import ctypes
import os
import sys
import threading

extension = ctypes.CDLL(sys.argv[1])
extension.plugin_give.restype = ctypes.c_void_p
extension.plugin_give.argtypes = [ctypes.c_size_t]
extension.plugin_take.argtypes = [ctypes.c_void_p]


def work():
    blocks = [extension.plugin_give(size) for size in range(0, 200_000, 501)]
    texts = [str(block) * 100 for block in blocks]
    for block in blocks:
        extension.plugin_take(block)
    assert len(texts) == len(blocks)


threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(5):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
for thread in threads:
    thread.join()
