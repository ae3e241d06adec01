"""Numbers for people to read."""


def duration(seconds: float) -> str:
    """Seconds in words of one unit or two.

    >>> duration(42), duration(754), duration(7500)
    ('42 s', '12 min 34 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(count: int) -> str:
    """Bytes in decimal units.

    >>> size(812), size(20_480), size(61_300_000)
    ('812 B', '20.5 kB', '61.3 MB')
    """
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 999.95:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} GB"
