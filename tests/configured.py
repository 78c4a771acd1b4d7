from opscope.record.configuration import SETTINGS, Configuration, Value


def configured(target: str, **values: Value | None) -> Configuration:
    """A configuration with these values, as the command line would make it for one point."""
    given = {name: value for name, value in values.items() if value is not None}
    sizes = {name for name in given if name in SETTINGS and SETTINGS[name].is_size}
    return Configuration(
        target,
        {name: value for name, value in given.items() if name not in sizes},
        {name: value for name, value in given.items() if name in sizes},
    )
