# ruff: noqa: RUF001 - what looks like another character is the one that is meant
"""MariaDB's character sets, and how bytes become text in them: to the letter as the server itself converts them.

Most of them are among Python's codecs. Some of those differ in a few characters, which are replaced; and some character
sets no codec has, so that their upper halves stand here.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable

Decode = Callable[[bytes], str]
"""Makes a text of bytes; `UnicodeDecodeError` if they are none."""

CODECS = {
    "ascii": "ascii",
    "big5": "cp950",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "cp949",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "tis620": "tis_620",
    "ucs2": "utf_16_be",
    "ujis": "euc_jp",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "utf8": "utf_8",
    "utf8mb3": "utf_8",
    "utf8mb4": "utf_8",
}
"""The character sets that are Python's, and its names for them."""

REPLACED = {
    "big5": str.maketrans("‧﹑¯～⊕⊙∕﹨￥￠￡", "•､‾∼♁☉／＼¥¢£"),
    "cp866": str.maketrans("№¤", "ⁿ²"),
    "eucjpms": str.maketrans("〜‖−¢£¬", "～∥－￠￡￢"),
    "greek": str.maketrans("\u2018\u2019", "ʽʼ"),
    "hebrew": str.maketrans("¯", "‾"),
    "koi8u": str.maketrans("∙", "•"),
    "sjis": str.maketrans("＼", "\\"),
    "ujis": str.maketrans("＼", "\\"),
}
"""Where a codec says one thing, and the server another."""

_LOW = bytes(range(128)).decode("ascii")
_CONTROLS = bytes(range(128, 160)).decode("latin-1")

TABLES = {
    "armscii8": (
        f"{_LOW}{_CONTROLS}\xa0❁§։)(»«\u2014.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէ"
        "ԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ\u2019'"
    ),
    "dec8": (
        f"{_LOW}{_CONTROLS}\xa0¡¢£�¥�§¤©ª«����°±²³�µ¶·�¹º»¼½�¿"
        "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ�ÑÒÓÔÕÖŒØÙÚÛÜŸ�ßàáâãäåæçèéêëìíîï�ñòóôõöœøùúûüÿ��"
    ),
    "geostd8": (
        f"{_LOW}€�‚�„…†‡�‰�‹�����\u2018\u2019“”•\u2013\u2014���›����\xa0¡¢£¤¥¦§¨©ª«¬\xad®¯°±²³´µ¶·¸¹º»¼½¾¿"
        "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ�����������������������№��"
    ),
    "hp8": (
        f"{_LOW}{_CONTROLS}\xa0ÀÂÈÊËÎÏ´ˋˆ¨˜ÙÛ₤¯Ýý°ÇçÑñ¡¿¤£¥§ƒ¢"
        "âêôûáéóúàèòùäëöüÅîØÆåíøæÄìÖÜÉïßÔÁÃãÐðÍÌÓÒÕõŠšÚŸÿÞþ·µ¶¾\u2014¼½ªº«■»±�"
    ),
    "keybcs2": (
        f"{_LOW}ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐"
        "└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
    ),
    "latin1": _LOW
    + bytes(range(128, 256))
    .decode("latin-1")
    .translate(
        {byte: bytes([byte]).decode("cp1252") for byte in range(128, 160) if byte not in b"\x81\x8d\x8f\x90\x9d"}
    ),
    "swe7": _LOW.translate(str.maketrans("@[\\]^`{|}~\x7f", "ÉÄÖÅÜéäöåü�")),
}
"""The others: a character for each byte, � where it is none."""


@functools.cache
def decoder(charset: str) -> Decode | None:
    """What decodes texts in a character set, as the server names it; None if it is not known.

    >>> decode = decoder("latin1")
    >>> decode(bytes([0x67, 0x72, 0xF6, 0xDF, 0x65, 0x20, 0x80]))
    'größe €'
    """
    if charset in TABLES:
        table = TABLES[charset].replace("\ufffd", "\ufffe")  # which is Python's sign for it
        return lambda value: codecs.charmap_decode(value, "strict", table)[0]
    codec, replaced = CODECS.get(charset), REPLACED.get(charset)
    if codec is None:
        return None
    if replaced is None:
        return lambda value: value.decode(codec)
    return lambda value: value.decode(codec).translate(replaced)
