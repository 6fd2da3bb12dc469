"""No shipped table records text of the model as a name: tools are looked up in the trainer's registry."""

from sglang_instrument.patching.tables.field_language import Path, parse
from sglang_instrument.patching.tables.reading import load_tables

#: Names that a user's own settings give: of an environment, of a data set's task.
OF_THE_USER = {"task_name", "self.rollout_cache.tag"}


def tools_in_tables():
    """Return each field for the names of tools in the shipped tables, with its table."""
    fields_of_tables = []
    for table in load_tables(None, []):
        for patch in table.patches:
            for region in patch.regions:
                for moment, fields in (("enter", region.enter), ("exit", region.exit)):
                    fields_of_tables += [
                        (table.name, parse(text, moment))
                        for name, text in fields.items()
                        if name in ("tool", "tools")
                    ]
    return fields_of_tables


def test_the_name_of_a_tool_that_a_reply_calls_is_looked_up():
    fields = [(table, field) for table, field in tools_in_tables() if field.text not in OF_THE_USER]
    assert {table.partition("/")[0] for table, _ in fields} >= {"verl", "miles"}
    for table, field in fields:
        for value in field.alternatives:
            assert not isinstance(value, Path) or value.registry is not None, (table, field.text)


def test_the_name_of_a_tool_is_read_when_its_span_begins():
    """A tool that hangs is named while it does: fields of `exit` are unknown until then."""
    at_exit = [
        (table.name, region.event)
        for table in load_tables(None, [])
        for patch in table.patches
        for region in patch.regions
        if not {"tool", "tools"}.isdisjoint(region.exit)
    ]
    assert at_exit == []
