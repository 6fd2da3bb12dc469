# How a reader is made of parsed expressions.

@cython.boundscheck(True)
@cython.wraparound(True)
cdef class _Maker:
    """Makes the nodes of a reader's fields; paths that begin alike share theirs."""

    cdef dict indices
    cdef dict known
    cdef list shared

    def __init__(self, names):
        self.indices = {name: index for index, name in enumerate(names)}
        self.known = {}
        self.shared = []

    def node(self, key, make):
        """Return the node of a key; from its second use on it remembers its value."""
        cdef Node node
        if key in self.known:
            node = self.known[key]
            if node.slot < 0 and not isinstance(node, (Local, Constant)) and len(self.shared) < MOST_SLOTS:
                node.slot = len(self.shared)
                self.shared.append(node)
            return node
        node = self.known[key] = make()
        return node

    def field(self, expression):
        """Return the alternatives of a field: node, whether its value is kept as it is, whether it asks."""
        made = []
        for value in expression.alternatives:
            is_constant = not hasattr(value, "steps")
            node = self.constant(value.value) if is_constant else self.value(value, expression)
            kept = is_constant or self.is_of_records(value, expression)
            made.append((node, kept, not is_constant and value.function == "missing"))
        return made

    def constant(self, value):
        cdef Constant constant = Constant()
        constant.value = value
        return constant

    def is_of_records(self, path, expression):
        return path.root in ("inside", "before") and expression.is_root(path)

    def value(self, path, expression):
        """Return the node of a path and its function."""
        cdef IsMissing asking
        node, key = self.walk(path, expression)
        function = path.function
        if function is None:
            return node
        if function == "missing":
            asking = IsMissing()
            asking.of = node
            return asking
        each = any(step.kind == "each" for step in path.steps)
        return self.node((key, each, function), lambda: self.measured(function, each, node, key))

    def measured(self, function, each, node, key):
        made = self.listed(function, each, node, key)
        what = SUMS.get(function)
        if what is None or not isinstance(node, FieldOfEach) or (<FieldOfEach>node).name != DURATION_SEC:
            return made
        return of_durations(node, made, what)

    def listed(self, function, each, node, key):
        cdef Measured measured
        cdef Numbers numbers
        cdef Mean mean
        if function == "percent":
            measured = Percent()
            measured.of = node
            return measured
        if function in ("any", "not") and isinstance(node, Records):
            return happened(node, function == "not")
        measure = measure_named(function)[each]
        if function in ("mean", "min", "max") or function[0] == "p" or function.startswith("over"):
            numbers = Numbers()
            numbers.of = node
            numbers = self.node((key, "numbers"), lambda: numbers)
            if function == "mean":
                mean = Mean()
                mean.of = numbers
                return mean
            measured = Measured()
            measured.of, measured.measure = numbers, measure
            return measured
        kinds = {
            ("size", False): Size, ("size", True): Sizes, ("total", False): Total, ("total", True): Totals,
            ("sum", True): Totals, ("any", False): Any, ("any", True): AnyOfEach, ("not", False): Any,
            ("not", True): AnyOfEach,
        }
        measured = kinds.get((function, each), Measured)()
        measured.of, measured.measure = node, measure
        if isinstance(measured, Totals):
            (<Totals>measured).something = function == "sum"
        if isinstance(measured, Any):
            (<Any>measured).none = function == "not"
        return measured

    def walk(self, path, expression):
        """Return the node at a path's end, and the key by which others find it."""
        if self.is_of_records(path, expression):
            return self.records(path)
        node, key, steps = self.root(path, expression)
        if not path.steps:
            return self.node((key, "whole"), lambda: whole(node)), (key, "whole")
        return self.along(node, key, steps, False)

    def root(self, path, expression):
        if not expression.is_root(path):
            return self.node(("local", path.root), lambda: self.local(path.root)), ("local", path.root), path.steps
        if path.root == "bound":
            name = path.steps[0].name
            return self.node(("bound", name), lambda: bound(name)), ("bound", name), path.steps[1:]
        if path.root == "modules":
            return self.node("modules", lambda: self.constant(sys.modules)), "modules", path.steps
        return self.node("value", Given), "value", path.steps

    def local(self, name):
        cdef Local local
        if name not in self.indices:
            return Unknown()
        local = Local()
        local.index = self.indices[name]
        return local

    def records(self, path):
        cdef object key = (path.root, path.steps[0].name)
        event = sys.intern(path.steps[0].name)  # what is compared often is compared by its place in memory
        node = self.node(key, lambda: records(event, path.root == "before"))
        steps = path.steps[1:]
        if [(step.kind, step.of) for step in steps] == [("each", None), ("attribute", None)] and not steps[0].name:
            name = sys.intern(steps[1].name)
            return self.node((key, name), lambda: field_of_each(node, name)), (key, name)
        if [step.kind for step in steps] == ["each", "pick"] and not steps[0].name:
            key = (key, steps[1].names)
            return self.node(key, lambda: pick_of_each(node, steps[1].names)), key
        return self.along(node, key, steps, True)

    def along(self, node, key, steps, of_records):
        for index, step in enumerate(steps):
            key = (key, step if step.kind != "each" else tuple(steps[index:]), of_records)
            before, made = node, self.step(steps[index:], of_records)
            node = self.node(key, lambda: gone(before, made))
            if step.kind == "each":
                break
        return node, key

    def step(self, steps, of_records):
        """Return the first of some steps; one over all elements takes the others with it."""
        cdef EachStep each
        cdef AttributeStep attribute
        cdef KeyStep key
        cdef PickStep pick
        step = steps[0]
        if step.kind == "pick":
            pick = PickStep()
            pick.names = tuple(map(tuple, step.names))
            return pick
        if step.kind == "attribute" and not of_records:
            attribute = AttributeStep()
            attribute.name = sys.intern(str(step.name))
            return attribute
        if step.kind != "each":
            return self.key_step(step)
        each = EachStep()
        rest = list(steps[1:])
        if step.name:
            each.asked = self.step([type(step)("attribute", step.name)], of_records)
        if of_records and rest and rest[0].kind in ("attribute", "key"):
            if rest[0].of is None:
                each.field = rest[0].name
            else:
                each.field_of = self.key_step(rest[0])
        each.rest = tuple(self.rest(rest, of_records))
        return each

    def rest(self, steps, of_records):
        for index, step in enumerate(steps):
            yield self.step(steps[index:], of_records)
            if step.kind == "each":
                return

    def key_step(self, step):
        cdef KeyStep key
        cdef KeyOfStep of
        if step.of is None:
            key = KeyStep()
            key.key = sys.intern(step.name) if type(step.name) is str else step.name  # found by its place in memory
            return key
        of = KeyOfStep()
        of.local = self.indices.get(step.of.root, -1)
        of.attributes = tuple([str(attribute.name) for attribute in step.of.steps])
        return of


cdef dict SUMS = {"total": TOTAL, "sum": SUM, "mean": MEAN, "percent": PERCENT}


cdef Node of_durations(FieldOfEach of, Node listed, Sum what):
    cdef OfDurations node = OfDurations()
    node.of, node.listed, node.what = of, listed, what
    return node


cdef Node whole(Node of):
    cdef Whole node = Whole()
    node.of = of
    return node


cdef Node bound(name):
    cdef Bound node = Bound()
    node.name = name
    return node


cdef Node gone(Node of, Step step):
    cdef Gone node = Gone()
    node.of, node.step = of, step
    return node


cdef Node records(event, before):
    cdef Records node = Records()
    node.event, node.before = event, before
    return node


cdef Node field_of_each(Records of, name):
    cdef FieldOfEach node = FieldOfEach()
    node.of, node.name = of, name
    return node


cdef Node pick_of_each(Records of, names):
    cdef PickOfEach node = PickOfEach()
    node.of, node.names = of, tuple(map(tuple, names))
    node.new, node.old = names_of([new for new, _ in names]), tuple([sys.intern(old) for _, old in names])
    return node


cdef Node happened(Records of, none):
    cdef Happened node = Happened()
    node.of, node.none = of, none
    return node


def reader(expressions, names):
    """Return what reads parsed expressions, by name, from a run and the values of the locals `names`."""
    cdef Reader made = Reader()
    cdef Alternative *one
    cdef Py_ssize_t at
    cdef Node node
    maker = _Maker(names)
    fields = [maker.field(expression) for expression in expressions.values()]
    made.nodes = [node for field in fields for node, _, _ in field]
    made.names = names_of(expressions)
    made.alternatives = <Alternative *>take_block(max(1, len(made.nodes)) * sizeof(Alternative))
    if made.alternatives == NULL:
        raise MemoryError
    for number, field in enumerate(fields):
        for node, kept, asks in field:
            one = &made.alternatives[made.count]
            one.node, one.field, one.kept, one.asks = <PyObject *>node, number, kept, asks
            made.count += 1
        for at in range(made.count - len(field), made.count):
            made.alternatives[at].next_field = made.count
    made.lines = (<char *>&made.alternatives[made.count] - <char *><PyObject *>made) // CACHE_LINE
    if not 0 < made.lines < MOST_LINES:  # a slab ended in between
        made.lines = 0
    made.slots, made.arity = len((<_Maker>maker).shared), len(names)
    return made
