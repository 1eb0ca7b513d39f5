"""What a verdict adds where nobody measured the device that wins, and where one fitted term decides an order."""

from collections.abc import Callable

from rlsim.report.format import seconds
from rlsim.schema.hardware import HardwareProfile
from rlsim.tables.profile import table_device

PLAIN_HOST = "x86"
"""Host processor that no fitted factor slows down."""


def backing(device: HardwareProfile) -> str:
    """What the times of a device rest on for want of measurements on it; empty where its operators were measured."""
    if device.operator_tables is None:
        return (
            f"no operator was measured on {device.name}: times are of its datasheet, host and framework terms those of "
            "NVIDIA machines"
        )
    reference = table_device(device)
    if reference.name == device.name:
        return ""
    return f"no operator was measured on {device.name}: times of {reference.name} are carried over"


def price_words(device: HardwareProfile) -> str:
    """The price of a device's hour in USD, and that it is a round default or another assumption where it is."""
    price = device.price_per_gpu_hour_usd
    origin = "a round default" if price.ref.startswith("round default") else price.source
    return f"{price.value:.2f} USD an hour" + ("" if price.source == "measured" else f" ({origin})")


def unmeasured_winner(device: HardwareProfile, best_measured: str = "") -> tuple[str, ...]:
    """The remark beside a winner on ``device``; none where that was measured.

    best_measured: what the best choice on a measured device takes, in words.
    """
    words = backing(device)
    if not words:
        return ()
    beside = f" Best on a measured device: {best_measured}." if best_measured else ""
    return (f"{words[0].upper()}{words[1:]}; its GPUs cost {price_words(device)}.{beside}",)


def host_decides(
    devices: tuple[HardwareProfile, HardwareProfile],
    steps_s: tuple[float, float],
    names: tuple[str, str],
    with_plain_host: Callable[[int], float | None],
) -> tuple[str, ...]:
    """The remark where the order of two choices is another once both have a plain host; none where it is not.

    steps_s: seconds of a step of both. with_plain_host: those of the choice at a place, with PLAIN_HOST as its host;
    None where it cannot run.
    """
    slowed = [place for place, device in enumerate(devices) if device.host_cpu != PLAIN_HOST]
    if len(slowed) != 1:
        return ()
    place = slowed[0]
    plain_s = with_plain_host(place)
    if plain_s is None or (steps_s[place] < steps_s[1 - place]) == (plain_s < steps_s[1 - place]):
        return ()
    host = devices[place].host_cpu
    return (
        f"The order hangs on one fitted term, how much slower work of the host is on {host}, which totals of steps "
        f"alone tell: with the time of an {PLAIN_HOST} host {names[place]} takes {seconds(plain_s)}.",
    )
