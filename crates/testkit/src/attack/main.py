# The end of the program of probes: runs those that are named, each in a child of its own.

def run(name, argument):
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        global REPORT
        os.close(reader)
        REPORT = writer
        try:
            text = "REACHED " + str(PROBES[name](argument))
        except Stopped as e:
            text = "STOPPED %s" % e
        except OSError as e:
            text = "STOPPED %s (%s)" % (errno.errorcode.get(e.errno, e.errno), e.strerror)
        except MemoryError:
            text = "STOPPED no memory"
        except BaseException as e:
            text = "BROKEN %s: %s" % (type(e).__name__, e)
        os.write(writer, text.replace("\n", " ").encode()[:2000])
        os._exit(0)
    os.close(writer)
    text = b""
    while True:
        part = os.read(reader, 4096)
        if not part:
            break
        text += part
    os.close(reader)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        text = b"STOPPED signal %d" % os.WTERMSIG(status)
    print(name, (text or b"BROKEN silent").decode(errors="replace"), flush=True)


for item in sys.argv[1:]:
    name, _, argument = item.partition("=")
    if name not in PROBES:
        print(name, "BROKEN no such probe", flush=True)
        continue
    run(name, argument)
