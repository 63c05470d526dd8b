"""Numbers in transcripts as they are spoken: cardinals, ordinals, years, money, percentages, times and dates.

The words are num2words'; how a number is written decides how it is read.
"""

import functools
import re
from decimal import Decimal

from num2words import CONVERTER_CLASSES, num2words

from asr.errors import UserError

CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
SIGNS = re.escape("".join(CURRENCIES))
PERCENT = {
    "en": "percent",
    "de": "Prozent",
    "fr": "pour cent",
    "es": "por ciento",
    "it": "per cento",
    "pt": "por cento",
    "nl": "procent",
    "sv": "procent",
    "da": "procent",
    "no": "prosent",
    "pl": "procent",
    "cs": "procent",
    "fi": "prosenttia",
    "ru": "процентов",
    "uk": "відсотків",
}
ORDINALS = {"en": "st|nd|rd|th", "fr": "er|re|ère|e|ème", "es": "º|ª|er", "it": "º|ª", "pt": "º|ª"}
# Elsewhere the comma is the decimal mark.
DECIMAL_POINT = frozenset(["en", "he", "ja", "ko", "th", "bn", "te", "kn", "ar", "fa"])
# Where a year differs from the number: nineteen eighty four. Of other languages, num2words names eras
# (明応九年), adds "year" (천오백년) or has no years.
YEARS = frozenset(["en", "de", "nl", "da", "no", "fi", "sl", "am"])
# Where num2words has no word for the sign, or fails.
MINUS = {
    "ar": "سالب",
    "bn": "মাইনাস",
    "cy": "meinws",
    "fa": "منفی",
    "id": "min",
    "it": "meno",
    "kn": "ಮೈನಸ್",
    "te": "మైనస్",
    "vi": "âm",
}
# The decimal mark where num2words has no word or several forms of it.
POINT = {
    "ar": "فاصلة",
    "bn": "দশমিক",
    "cy": "pwynt",
    "fa": "ممیز",
    "id": "koma",
    "it": "virgola",
    "ja": "点",
    "te": "బిందువు",
    "vi": "phẩy",
}
# Where the digits after the mark are one number: przecinek pięćdziesiąt.
FRACTION_AS_NUMBER = frozenset(["az", "be", "cs", "kz", "lt", "lv", "pl", "sk", "sr", "tr", "uk"])
UNSPACED = frozenset(["ja", "th"])
LONG = 7  # digits without a mark between them: a telephone number or a code, read digit by digit
TAG = re.compile(r"(<\w+>)")


def knows_numbers(language: str) -> bool:
    """Return whether numbers can be written as words in a language.

    >>> knows_numbers("en"), knows_numbers("pt-BR"), knows_numbers("xx")
    (True, True, False)
    """
    return bool(_converter(language))


def check_numbers(language: str) -> None:
    """Raise UserError, for the options `text=spoken` and `language`, unless `knows_numbers` is true."""
    if not knows_numbers(language):
        raise UserError(
            f"language={language}: text=spoken expects a language whose numbers num2words knows; "
            "text=words leaves numbers as they are"
        )


def spoken_numbers(text: str, language: str) -> str:
    """Return a text with its numbers as words; tags such as `<NOISE>` stay.

    Args:
        text: transcript as written.
        language: code of the language; where `knows_numbers` is false, the text stays as it is.

    Example:
        >>> spoken_numbers("In 1984, 3.5% paid $5 at 10:30.", "en")
        'In nineteen eighty four, three point five percent paid five dollars at ten thirty.'
        >>> spoken_numbers("Am 3.10.1990 kostete es 2,50 €", "de")
        'Am drei zehn neunzehnhundertneunzig kostete es zwei Euro fünfzig Cent'
    """
    if not re.search(r"\d", text) or not knows_numbers(language):
        return text
    reader = _Reader.of(language)
    return "".join(part if TAG.fullmatch(part) else reader.read(part) for part in TAG.split(text))


def _converter(language: str) -> str:
    """Return num2words' code of a language, the regional one if there is one; empty if it has neither."""
    base, _, region = language.replace("-", "_").partition("_")
    codes = (f"{base.lower()}_{region.upper()}", base.lower())
    return next((code for code in codes if code in CONVERTER_CLASSES), "")


class _Reader:
    """Reads the numbers of a language.

    Args:
        code: num2words' code of the language.
    """

    def __init__(self, code: str) -> None:
        self.code, self.base = code, code.partition("_")[0]
        self.space = "" if self.base in UNSPACED else " "
        converter = CONVERTER_CLASSES[code]
        self.minus = MINUS.get(self.base) or converter.negword.strip()
        self.point = POINT.get(self.base) or converter.pointword
        decimal, group = (r"\.", "[,]") if self.base in DECIMAL_POINT else (",", "[.\u00a0\u202f ’']")
        self.group = re.compile(group)
        thousands = rf"\d{{1,3}}(?:{group}\d{{3}})+(?!\d)"
        self.grouped = re.compile(rf"{thousands}(?:{decimal}\d+)?")
        self.number = re.compile(rf"{self.grouped.pattern}|\d+(?:[.,]\d+)?")
        number = f"(?:{self.number.pattern})"
        forms = [  # the first that fits is taken
            r"(?P<date>\d{1,4}(?P<mark>[./-])\d{1,2}(?P=mark)\d{1,4})(?!\d)",
            r"(?P<time>(?:[01]?\d|2[0-3]):[0-5]\d)(?!\d)",
            # R$ and A$ are other currencies than $.
            rf"(?<![A-Za-z])(?:US(?=\$))?[{SIGNS}]\s?{number}(?:\s(?:thousand|million|billion|trillion)\b)?",
            rf"{number}\s?[{SIGNS}](?!\s?\d)",
            rf"(?P<percent>{number})\s?%",
            rf"(?P<cardinal>(?:(?<!\S)[-−])?{number})",
        ]
        if endings := ORDINALS.get(self.base):
            forms.insert(0, rf"(?P<ordinal>{thousands}|\d+)(?:{endings})\b")
        if self.base == "en":
            forms.insert(0, r"(?P<decade>\d*\d0)['’]?s\b")
        self.forms = re.compile("|".join(forms))

    @classmethod
    @functools.cache
    def of(cls, language: str) -> "_Reader":
        """Return the reader of a language."""
        return cls(_converter(language))

    def read(self, text: str) -> str:
        """Return a text with its numbers as words."""
        return self.forms.sub(self._replaced, text)

    def _replaced(self, found: re.Match[str]) -> str:
        try:
            spoken = self._words_of(found)
        except Exception:  # num2words lacks forms of some languages, and fails in many ways
            spoken = self.number.sub(lambda part: self._cardinal_or_digits(part[0]), found[0])
        before, after = found.string[: found.start()][-1:], found.string[found.end() :][:1]
        return f"{self._gap(before)}{spoken.strip()}{self._gap(after)}"

    def _gap(self, beside: str) -> str:
        """Return what divides a number from the character beside it, with which it would make one word."""
        if beside in ("-", "–", "/", ":"):
            return " "
        return self.space if beside.isalnum() else ""

    def _words_of(self, found: re.Match[str]) -> str:
        written = found[found.lastgroup] if found.lastgroup else found[0]
        match found.lastgroup:
            case "date" | "mark":
                return " ".join(self._cardinal(x.lstrip("0") or "0") for x in re.split(r"\D", found["date"]))
            case "time":
                return self._time(*written.split(":"))
            case "percent":
                return f"{self._number(written)} {PERCENT.get(self.base, '')}"
            case "ordinal":
                return self._words(int(self._plain(written)), to="ordinal")
            case "decade":
                singular = self._cardinal(written)
                return f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"
            case "cardinal":
                return self._cardinal(written)
        return self._money(written)

    def _cardinal(self, written: str) -> str:
        negative = written[0] in "-−"
        digits = written[negative:]
        if digits.isdecimal():
            if len(digits) >= LONG or (digits[0] == "0" and len(digits) > 1):
                return self._digits(digits)
            year = not negative and (1100 <= int(digits) < 2000 or 2010 <= int(digits) < 2100)
            if year and self.base in YEARS:
                return self._words(int(digits), to="year")
        number = self._number(digits)
        return f"{self.minus}{self.space}{number}" if negative else number

    def _cardinal_or_digits(self, written: str) -> str:
        try:
            return self._cardinal(written)
        except Exception:  # beyond the largest word of num2words; in Amharic, from a thousand on
            return self._digits(written)

    def _digits(self, written: str) -> str:
        return self.space.join(self._words(int(x)) for x in written if x.isdecimal())

    def _number(self, written: str) -> str:
        """Return the words of a number without sign."""
        whole, _, fraction = self._plain(written).partition(".")
        if not fraction:
            return self._words(int(whole))
        if self.base == "ru" or (self.base == "hu" and int(fraction)):  # said as tenths, hundredths
            return self._words(Decimal(f"{whole}.{fraction}"))
        # num2words would lose zeros at the end.
        last = fraction.lstrip("0") if self.base in FRACTION_AS_NUMBER else ""
        first, *others = (self._words(int(x)) for x in (whole, *fraction.removesuffix(last), last) if x)
        return self.space.join([first, self.point, *others])

    def _time(self, hour: str, minute: str) -> str:
        minutes = "" if minute == "00" else self._words(int(minute))
        if self.base == "en":
            minutes = f"oh {minutes}" if minutes and minute[0] == "0" else minutes or "o'clock"
        return f"{self._words(int(hour))} {minutes}"

    def _money(self, written: str) -> str:
        currency = next(CURRENCIES[x] for x in written if x in CURRENCIES)
        number = self.number.search(written)
        assert number is not None
        amount = Decimal(self._plain(number[0]))
        scale = re.findall(r"[a-z]+$", written)
        if scale or amount != round(amount, 2):
            unit = self._paid(Decimal(2), currency)[0].split(maxsplit=1)[1]
            return " ".join([self._number(number[0]), *scale, unit])
        whole, rest = self._paid(amount, currency)
        return f"{whole} {rest}" if amount % 1 else whole

    def _paid(self, amount: Decimal, currency: str) -> tuple[str, str]:
        """Return the words of a sum, for the units and for the hundredths."""
        value = amount.quantize(Decimal("0.01"))
        whole, _, rest = self._words(value, to="currency", currency=currency, separator=" |").partition("|")
        return whole.strip(), rest.strip()

    def _plain(self, written: str) -> str:
        """Return a number with a decimal point and without marks between its digits."""
        if self.grouped.fullmatch(written):
            written = self.group.sub("", written)
        return written.replace(",", ".")

    def _words(self, value: int | Decimal, **form: str) -> str:
        # Hyphens within words would make new words of known ones: twenty-five.
        return " ".join(re.sub("[-‐,]", " ", num2words(value, lang=self.code, **form)).split())
