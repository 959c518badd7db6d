"""The word for a number of an API's enum, also for one that only a newer version knows.

Why this exists: agents and controllers are upgraded one after the other, so each meets values it has no name for. The
library raises an error there, and what is shown to people must not end in one.
"""

import re

from google.protobuf.descriptor import EnumDescriptor

_WORD_BEGINS = re.compile(r"(?<=[a-z])(?=[A-Z])")


def enum_word(enum: EnumDescriptor, number: int) -> str:
    """Return a value's name without the enum's (`SNAPSHOT_STATE_IN_USE` is `IN_USE`), else such as `UNKNOWN_99`."""
    value = enum.values_by_number.get(number)
    if value is None:
        return f"UNKNOWN_{number}"
    return value.name.removeprefix(_WORD_BEGINS.sub("_", enum.name).upper() + "_")
