"""Spoken forms of numbers and signs in transcripts: ordinals, fractions, years, money, dates and so on.

The words come from num2words and `number_words`; the way a number is written decides how it is read.
"""

import functools
import re
import unicodedata
from decimal import Decimal

from num2words import CONVERTER_CLASSES, num2words

from asr.errors import UserError
from asr.text.number_words import (
    AND_A_HALF,
    BEFORE_DAYS,
    COUNTED_PERCENT,
    ENDINGS,
    ENGLISH_DAY,
    FEMININE,
    FEW_PARTS,
    GENITIVE_DAYS,
    GERMAN_ENDINGS,
    GERMAN_MONTHS,
    GERMAN_PREPOSITIONS,
    HALVES,
    LARGEST_PART,
    LATVIAN_DAYS,
    LATVIAN_ENDINGS,
    LATVIAN_TENS,
    MONTHS,
    NO_FEMININE,
    ONE,
    OTHER_MARK,
    OTHER_PARTS,
    PART_ENDINGS,
    PARTS,
    SIGNS,
    UNCERTAIN,
    WITH_PART,
)
from asr.text.unit_words import OBLIQUE, SYMBOLS, UNITS

CURRENCIES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY"}
# Ordinals with an ending; and with a full stop, in languages with lower-case nouns: den 3. maj.
ORDINALS = {
    "en": "st|nd|rd|th",
    "de": "s?te[nrsm]?",
    "fr": "er|[èe]?re|i?[èe]mes?|es?|nde?s?",
    "es": r"\.?[ºª]|\.?er|[rdtmvn][oa]",
    "it": "[ºª]",
    "pt": r"\.?[ºª]",
    "nl": "ste|de|e",
    "sv": ":[ea]",
}
STOPPED_ORDINALS = frozenset(["da", "no", "hu", "tr"])
# Languages in which the ordinal's case is unknown: kolmas, kolmannen, kolmanteen.
INFLECTED_ORDINALS = frozenset(["cs", "fi", "is", "lt", "lv", "pl", "sk", "sl", "sr"])
# In all other languages, the comma is the decimal mark.
DECIMAL_POINT = frozenset(["en", "he", "ja", "ko", "th", "bn", "te", "kn", "ar", "fa"])
# Languages in which a year differs from the number: nineteen eighty four. In others, num2words names eras
# (明応九年), adds "year" (천오백년) or has no years.
YEARS = frozenset(["en", "de", "nl", "da", "no", "fi", "sl", "am"])
# Minus in languages for which num2words has no word, or fails.
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
# The decimal mark in languages for which num2words has no word, or several forms.
POINT = {
    "ar": "فاصلة",
    "bn": "দশমিক",
    "cy": "pwynt",
    "es": "coma",
    "fa": "ممیز",
    "id": "koma",
    "it": "virgola",
    "ja": "点",
    "te": "బిందువు",
    "vi": "phẩy",
}
# Languages in which the digits after the mark are read as one number: przecinek pięćdziesiąt.
FRACTION_AS_NUMBER = frozenset(["az", "be", "cs", "kz", "lt", "lv", "pl", "sk", "sr", "tr", "uk"])
UNSPACED = frozenset(["ja", "th"])
LONG = 7  # this many digits without a mark between them are a telephone number or code, read digit by digit
TAG = re.compile(r"(<\w+>)")
SCALES = {"": "", "C": "Celsius", "F": "Fahrenheit"}
SCALE_WORDS = {
    **{word: word for word in ("thousand", "million", "billion", "trillion")},
    "k": "thousand",
    "m": "million",
    "mn": "million",
    "b": "billion",
    "bn": "billion",
    "tn": "trillion",
}
KINDS = re.compile(
    "uncertain|telephone|date|day|named|clock|time|fraction|money|paid|percent|degree|unit|hash|ordinal|short"
    "|stopped|decade|sign|cardinal"
)
MOST_PARTS = frozenset([*range(2, 11), 12, 16, 20, 32, 64, 100, 1000])  # 24/7 and 9/11 aren't fractions
# Units of one letter need a space before them: 5s and 4G are names.
UNIT = (
    rf"[\s-]?(?:{'|'.join(map(re.escape, (x for x in SYMBOLS if len(x) > 1)))})|\s(?:{'|'.join('mglhstVW')})"
)
HOURS = frozenset(["fr", "es", "it", "pt"])  # 15h is a time of day, or a duration
DECADES = {"en": "['’]?s", "de": "er"}
ORNAMENTS = frozenset("|~^")
ROMAN = re.compile(
    r"(?:\w+\s+)?(?<![\w'’.-])(?=[IVX]{2})X{0,3}(?:IX|IV|V?I{0,3})(?:er|ère|re|e|ème|es)?(?![\w'’-])"
)


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
    """Return a text with its numbers and signs as words.

    Tags such as `<NOISE>` stay, and so does what has no known words; see `unspoken`.

    Args:
        text: transcript as written.
        language: code of the language; where `knows_numbers` is false, the text stays as it is.

    Example:
        >>> spoken_numbers("In 1984, 3.5% paid $5 at 10:30.", "en")
        'In nineteen eighty four, three point five percent paid five dollars at ten thirty.'
        >>> spoken_numbers("Am 3.10.1990 kostete es 2,50 €", "de")
        'Am drei zehn neunzehnhundertneunzig kostete es zwei Euro fünfzig Cent'
    """
    return _read(text, language)[0]


def unspoken(text: str, language: str) -> list[str]:
    """Return the signs and numbers of a text that have no known words in the language, in order.

    Example:
        >>> unspoken("½ cup at 20 °C, 5 ₪", "en"), unspoken("3/16 z 2³", "pl")
        (['₪'], ['3/16', '³'])
    """
    return list(_read(text, language)[1])


def without_signs(text: str) -> str:
    """Return a text with spaces for the numbers and signs that remain, except in tags.

    >>> without_signs("three ₪ <5>")
    'three   <5>'
    """
    return "".join(x if TAG.fullmatch(x) else _signs().sub(" ", x) for x in TAG.split(text))


@functools.lru_cache(maxsize=64)  # both functions are called with a text
def _read(text: str, language: str) -> tuple[str, tuple[str, ...]]:
    if not knows_numbers(language):
        return text, ()
    parts: list[str] = []
    missed: list[str] = []
    for part in TAG.split(text):
        spoken = part
        if not TAG.fullmatch(part):
            missed += _roman_numerals(part)
            if _signs().search(spoken):
                spoken, found = _Reader.of(language).read(spoken)
                missed += [*found, *_signs().findall(spoken)]
        parts.append(spoken)
    return "".join(parts), tuple(dict.fromkeys(missed))


def _roman_numerals(text: str) -> list[str]:
    """Return Roman numerals with the word before: Louis XIV is read in another way than Chapter IV.

    A single letter counts as a word or a name. In a text of capitals, numerals can't be told from words.

    >>> _roman_numerals("Louis XIV in Chapter IV, XXe siècle; Chapter I. Mix"), _roman_numerals("HENRY VIII")
    (['Louis XIV', 'Chapter IV', 'XXe'], [])
    """
    return [] if text.upper() == text else [found[0] for found in ROMAN.finditer(text)]


@functools.cache
def _signs() -> re.Pattern[str]:
    """Return a pattern for digits, other numbers and spoken signs: currencies, mathematics, &, %, #, @, °."""
    return re.compile(rf"\d|[{_characters('Nl', 'No', 'Sc', 'Sm')}&%‰#@§°№℃℉]")


def _characters(*categories: str) -> str:
    """Return the characters in Unicode categories, except ornaments, for a character class."""
    found = (x for x in map(chr, range(0x20000)) if unicodedata.category(x) in categories)
    return re.escape("".join(x for x in found if x not in ORNAMENTS))


def _converter(language: str) -> str:
    """Return num2words' code for a language, with the region if it exists; empty if there is none."""
    base, _, region = language.replace("-", "_").partition("_")
    codes = (f"{base.lower()}_{region.upper()}", base.lower())
    return next((code for code in codes if code in CONVERTER_CLASSES), "")


class _NotKnown(Exception):
    """The words for a number, as it is written, aren't certain.

    Args:
        said: a reading to use nevertheless; empty: each number by itself.
    """

    def __init__(self, said: str = "") -> None:
        super().__init__(said)
        self.said = said


class _Reader:
    """Reads the numbers of a language.

    Args:
        code: num2words' code of the language.
    """

    def __init__(self, code: str) -> None:
        self.code, self.base = code, code.partition("_")[0]
        self.space = "" if self.base in UNSPACED else " "
        self.signs = SIGNS.get(self.base, {})
        converter = CONVERTER_CLASSES[code]
        self.minus = MINUS.get(self.base) or converter.negword.strip()
        self.point = POINT.get(self.base) or converter.pointword
        self.decimal, group = (".", "[,]") if self.base in DECIMAL_POINT else (",", "[.\u00a0\u202f ’']")
        self.group = re.compile(group)
        thousands = rf"\d{{1,3}}(?:{group}\d{{3}})+(?!\d)"
        self.grouped = re.compile(rf"{thousands}(?:{re.escape(self.decimal)}\d+)?")
        self.number = re.compile(rf"{self.grouped.pattern}|\d+(?:[.,]\d+)?")
        number = f"(?:{self.number.pattern})"
        # R$ and A$ are not the currency $.
        own = "".join(rf"{re.escape(x)}|" for x in self.signs if len(x) > 1)
        money = rf"(?:{own}(?<![A-Za-z])(?:US(?=\$))?[{_characters('Sc')}])"
        minus = r"(?:(?<!\S)[-−])?"
        after = r"A-Za-z\d" if self.base in UNSPACED else r"\w"
        unit = UNIT + (r"|\s?h" if self.base in HOURS else "") + ("|[mg]" if self.base in UNSPACED else "")
        scale = rf"(?:[\s-]?(?:{'|'.join(SCALE_WORDS)})\b)?" if self.base == "en" else ""
        stops = self.base == "de" or self.base in STOPPED_ORDINALS | INFLECTED_ORDINALS
        uncertain = [
            r"\d+(?:\.\d+){3,}|(?<!\d)\d\.\d\.\d(?![\d.])",  # addresses and versions
            rf"\d+(?:\s?[\^*|]\s?\d+)+|~\s?{number}|\d+['′]\s?\d+[\"″]|\d+[′″]",
            *([r"(?<![\d.])(?:0?[1-9]|[12]\d|3[01])\.(?:0?[1-9]|1[0-2])\.(?![.\d])"] if stops else []),
            *(
                [rf"{number}(?!{unit}(?!\w))[-:][^\W\d_A-Z]{{1,3}}(?![\w-])"]
                if self.base in ENDINGS.split()
                else []
            ),
            *filter(None, [UNCERTAIN.get(self.base)]),
        ]
        forms = [  # the first that fits is taken
            rf"(?P<uncertain>{'|'.join(uncertain)})",
            r"(?P<telephone>(?=(?:[+(]?\d\D{0,2}){7})(?!\d\d(?P<divider>[/-])\d\d?(?P=divider)\d{4}(?!\d))"
            r"(?:\+\d[\d ()./-]+\d|\(\d+\) ?\d[\d ./-]+\d|0\d{1,5}(?:[ /-]\d{2,})+"
            r"|(?<![\d.,-])\d{3}(?:[ .-]\d{3}[ .-]\d{4}|-\d{4})))(?![\d-]|[.,]\d)",
            r"(?P<date>\d{1,4}(?P<mark>[./-])\d{1,2}(?P=mark)\d{1,4})(?!\d)",
            r"(?P<time>(?:[01]?\d|2[0-3]):[0-5]\d)(?!\d)",
            *([r"(?P<clock>(?:[01]?\d|2[0-3])\s?h\s?[0-5]\d)(?!\w)"] if self.base == "fr" else []),
            *([rf"(?P<named>{ENGLISH_DAY})"] if self.base == "en" else []),
            r"(?P<fraction>(?<![\d/.,])(?:\d+ )?\d+[/⁄]\d+(?![\d/]|[.,]\d)|(?:\d+ ?)?[¼-¾⅐-⅞])",
            rf"(?P<money>{minus}{money}\s?{number}{scale})",
            rf"(?P<paid>{minus}{number}\s?{money}(?!\s?\d))",
            rf"%\s?(?P<percent>{number})" if self.base == "tr" else rf"(?P<percent>{minus}{number})\s?%",
            rf"(?P<degree>{minus}{number})\s?(?:°\s?(?P<scale>[CF]?)\b|°|(?P<whole>[℃℉]))",
            rf"(?P<unit>{minus}{number})(?P<symbol>{unit})(?![{after}²³/°])(?P<suffix>[-:'’]\w+)?",
            r"(?P<hash>#)(?=\s?\d)",
            rf"(?P<cardinal>{minus}{number})",
            rf"(?P<sign>{money}|[&+=×@%§²³−])",
        ]
        if endings := ORDINALS.get(self.base):
            forms.insert(0, rf"(?P<ordinal>{thousands}|\d+)(?P<ending>{endings})\b")
        if self.base == "it":  # a degree sign is easier to type
            forms.insert(0, r"(?<![\w'’])(?P<short>1|(?<=[lL] )\d+|(?<=[lL]a )\d+)°(?=\s[^\W\dCF]{2})")
        if self.base == "de":
            forms.insert(
                0, r"(?P<stopped>\d{1,4})\.(?=\s+(?:(?:und|oder|bis|sowie|/)\s+\d{1,4}\.\s+)*[^\W\d])"
            )
        elif self.base in STOPPED_ORDINALS | INFLECTED_ORDINALS:
            forms.insert(0, r"(?P<stopped>\d{1,4})\.(?=\s+[^\W\d])")
        self.before_days = frozenset(BEFORE_DAYS.get(self.base, "").split())
        if self.before_days or self.base == "sv":
            months = "|".join(MONTHS[self.base].split())
            forms.insert(0, rf"(?P<day>(?<!\d)(?:[12]?\d|3[01])) +(?P<month>{months})\b")
        if ending := DECADES.get(self.base):
            forms.insert(0, rf"(?P<decade>\d*\d0){ending}\b")
        self.forms = re.compile("|".join(forms))

    @classmethod
    @functools.cache
    def of(cls, language: str) -> "_Reader":
        """Return the reader of a language."""
        return cls(_converter(language))

    def read(self, text: str) -> tuple[str, list[str]]:
        """Return a text with its numbers and signs as words, and the numbers that can't be read."""
        missed: list[str] = []

        def replaced(found: re.Match[str]) -> str:
            try:
                spoken = self._words_of(found).strip()
            except Exception as error:  # num2words lacks forms of some languages, and fails in many ways
                spoken = self.number.sub(
                    lambda part: f"{self.space}{self._cardinal_or_digits(part[0])}{self.space}", found[0]
                ).strip()
                if isinstance(error, _NotKnown):
                    spoken = error.said or spoken
                    missed.append(found[0].strip())
            before, after = found.string[: found.start()][-1:], found.string[found.end() :][:1]
            return f"{self._gap(before)}{spoken}{self._gap(after)}"

        return re.sub(r"(?<=\S) {2,}(?=\S)", " ", self.forms.sub(replaced, text)), missed

    def _gap(self, beside: str) -> str:
        """Return the space that must separate a number's words from the character beside it, if any."""
        if beside in ("-", "–", "/", ":"):
            return " "
        return self.space if beside.isalnum() or _signs().match(beside) else ""

    def _words_of(self, found: re.Match[str]) -> str:
        kind = next((x for x in found.groupdict() if KINDS.fullmatch(x) and found[x] is not None), "")
        written = found[kind]
        if written[0] in "-−" and kind not in ("cardinal", "sign"):
            return f"{self.minus}{self.space}{self._said(kind, written[1:], found)}"
        return self._said(kind, written, found)

    def _said(self, kind: str, written: str, found: re.Match[str]) -> str:
        match kind:
            case "uncertain":
                raise _NotKnown
            case "telephone":
                plus = f"{self._sign('+')} " if written[0] == "+" else ""
                return plus + self._digits(written)
            case "date":
                return " ".join(self._cardinal(x.lstrip("0") or "0") for x in re.split(r"\D", written))
            case "time":
                return self._time(*written.split(":"))
            case "fraction":
                return self._fraction(written)
            case "money" | "paid":
                return self._money(written)
            case "day":
                return self._day(written, found)
            case "named":
                month, day = written.split()
                return f"{month} {self._words(int(day), to='ordinal')}"
            case "clock":
                hour, minutes = re.split(r"\s?h\s?", written)
                return f"{self._form('h', hour, found)} {self._words(int(minutes)) if int(minutes) else ''}"
            case "unit":
                return self._measured(written, found)
            case "percent":
                word = self._sign("%")
                if self.base == "tr":
                    return f"{word} {self._number(written)}"
                if "%" in UNITS.get(self.base, {}):
                    return self._form("%", written, found)
                one = written == "1" and self.base in COUNTED_PERCENT
                return f"{ONE[self.base] if one else self._number(written)}{self.space}{word}"
            case "degree":
                scale = found["scale"] or {"℃": "C", "℉": "F"}.get(found["whole"] or "", "")
                if self.base == "ja" and scale == "F":
                    raise _NotKnown
                scale = "" if self.base == "ja" else SCALES[scale]
                return f"{self._counted(written, '°')} {scale}".strip()
            case "hash":
                return self._sign("#")
            case "ordinal" | "short":
                return self._ordinal(written, found["ending"] if kind == "ordinal" else "º")
            case "stopped":
                return self._stopped(found)
            case "decade":
                if self.base == "de":
                    return f"{self._cardinal(written)}er"
                singular = self._cardinal(written)
                return f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"
            case "sign":
                return self.minus if written == "−" else self._sign(written)
        self._check_gender(written, found)
        return self._cardinal(written)

    def _check_gender(self, written: str, found: re.Match[str]) -> None:
        """Raise _NotKnown if a Spanish or Portuguese noun requires another form: veintiuna, duzentas."""
        after = re.match(r"\s([a-zà-ÿ]+)", found.string[found.end() :])
        if self.base not in ("es", "pt") or not after or after[1] in NO_FEMININE.split() or "," in written:
            return
        value = int(re.sub(r"\D", "", written)) % 1000
        feminine = after[1].endswith("as") and not after[1].endswith("mas")
        ones = 0 if value // 10 % 10 == 1 else value % 10  # once, doze have one form
        changes = ones == 1 if self.base == "es" else feminine and ones in (1, 2)
        if changes or (feminine and value >= 200):
            raise _NotKnown

    def _sign(self, sign: str) -> str:
        """Return the word for a sign, in the plural if it is a unit."""
        sign = sign.removeprefix("US")
        if sign in self.signs:
            return self.signs[sign].rpartition("|")[2]
        if sign in CURRENCIES:
            return self._paid(Decimal(2), CURRENCIES[sign])[0].split(maxsplit=1)[1]
        raise KeyError(sign)

    def _counted(self, written: str, unit: str) -> str:
        """Return the words for a number with its unit, one of `signs`."""
        singular, _, plural = self.signs[unit].partition("|")
        if written == "1":
            return f"{ONE.get(self.base) or self._words(1)}{self.space}{singular}"
        return f"{self._number(written)}{self.space}{plural}"

    def _measured(self, written: str, found: re.Match[str]) -> str:
        """Return the words for a number with its unit of measurement."""
        symbol, suffix = found["symbol"].strip(), found["suffix"] or ""
        hyphened = symbol.startswith("-")
        symbol = symbol.removeprefix("-")
        if symbol not in UNITS.get(self.base, {}) or (suffix and self.base not in ("en", "de")):
            raise _NotKnown
        said = self._form(symbol, written, found)
        if hyphened or suffix:  # a 5-km run
            if self.base not in ("en", "de"):
                raise _NotKnown
            if self.base == "en":
                singular, plural = UNITS[self.base][symbol].split("|")
                said = re.sub(rf"\b{re.escape(plural)}$", singular, said)
        return said + suffix

    def _form(self, symbol: str, written: str, found: re.Match[str]) -> str:
        """Return the words for a number, and the unit in the matching form.

        Raises:
            _NotKnown: a preposition or the language's articles require a form that isn't known.
        """
        forms = UNITS[self.base][symbol].split("|")
        before = re.findall(r"\w+", found.string[: found.start()].lower())[-1:]
        number, value = self._number(written), Decimal(self._plain(written))
        whole = not value % 1
        if self.base in OBLIQUE:
            few = whole and 2 <= value % 10 <= 4 and value % 100 // 10 != 1
            many = value != 1 if self.base in ("pl", "cs") else value % 10 != 1 or value % 100 == 11
            if self.base == "cs":
                few = 2 <= value <= 4
            form = forms[3] if not whole else forms[1] if few else forms[2] if many else forms[0]
            if self.base == "cs" and value == 1:
                number = "jedno" if symbol == "%" else "jeden"
            if self.base == "cs" and value == 2 and symbol == "%":
                number = "dvě"
            said = f"{number} {form}"
            if before and before[0] in OBLIQUE[self.base].split():
                raise _NotKnown(said)
            return said
        own_one = forms[2] if len(forms) > 2 else ""
        if value == 1 and whole:
            if self.base == "de" and (own_one == "?" or (before and before[0] in GERMAN_PREPOSITIONS)):
                raise _NotKnown(f"{ONE['de']} {forms[0]}")
            one = own_one or ONE.get(self.base) or self._words(1)
            return f"{one}{'' if one.endswith(chr(39)) else self.space}{forms[0]}"
        form = forms[1].replace("ó", "ô") if self.code == "pt_BR" else forms[1]
        if own_one in ("una", "uma", "une"):  # veintiuna horas, duas horas
            number = re.sub(r"uno$|um$|un$", own_one, number) if self.base != "it" else number
            number = re.sub(r"dois$", "duas", number)
            number = re.sub(r"(?<=[cñiz])entos\b", "entas", number)
        elif self.base == "es":
            number = re.sub(r"veintiuno$", "veintiún", number)
            number = re.sub(r"(?<=\s)uno$", "un", number)
        return f"{number}{self.space}{form}"

    def _day(self, written: str, found: re.Match[str]) -> str:
        """Return the words for the day before a month; a genitive if the preceding word requires it."""
        said = f"{self._day_ordinal(int(written), found['month'])} {found['month']}"
        if self.before_days and not self._after_preposition(found):
            raise _NotKnown(said)
        return said

    def _after_preposition(self, found: re.Match[str]) -> bool:
        """Return whether the word before a day determines the case of its ordinal."""
        before = re.findall(r"\w+", found.string[: found.start()].lower())[-1:]
        return bool(before) and before[0] in self.before_days

    def _day_ordinal(self, day: int, month: str) -> str:
        """Return the ordinal of a day in the case that its month or the word before it requires."""
        if self.base == "lv":
            tens, ones = divmod(day, 10) if day >= 20 else (0, day)
            stems = [LATVIAN_TENS[tens - 2]] if tens else []
            stems += [LATVIAN_DAYS.split()[ones - 1]] if ones else []
            return " ".join(stems) + LATVIAN_ENDINGS[month[-1]]
        if self.base in GENITIVE_DAYS:
            days = GENITIVE_DAYS[self.base].split()
            parts = [days[day - 1]] if day <= 20 else [days[19 if day < 30 else 20]]
            parts += [days[day % 10 - 1]] if day > 20 and day % 10 else []
            if "?" in parts:
                raise _NotKnown
            return (" og " if self.base == "is" else " ").join(parts)
        ordinal = self._words(day, to="ordinal")
        match self.base:
            case "fi" | "sv":
                return ordinal
            case "pl":
                return " ".join(re.sub("y$", "ego", re.sub("i$", "iego", x)) for x in ordinal.split())
            case "sl":
                return re.sub("i$", "ega", ordinal)
            case "ru":
                return re.sub("ий$", "ьего", re.sub("[ыо]й$", "ого", ordinal))
        return re.sub("ій$", "ього", re.sub("ий$", "ого", ordinal))

    def _ordinal(self, written: str, ending: str) -> str:
        spoken = self._words(int(self._plain(written)), to="ordinal")
        feminine = ending.strip(".").endswith(("ª", "a"))
        match self.base:
            case "de":
                return spoken + re.sub("^s?te", "", ending)
            case "es" | "it" | "pt" if feminine:
                return re.sub(r"o\b", "a", spoken)
            case "es" if ending.endswith("er"):
                return spoken.removesuffix("o")
            case "fr" if ending.startswith("nd"):
                return {"deuxième": "seconde" if "e" in ending else "second"}.get(spoken, spoken)
            case "fr" if ending.endswith("re"):
                return re.sub(r"premier$", "première", spoken)
        return spoken

    def _stopped(self, found: re.Match[str]) -> str:
        """Return the words of a number with a full stop: an ordinal, or the end of a sentence."""
        number, after = found["stopped"], re.match(r"\s*(\w+)", found.string[found.end() :])
        follower = after[1] if after else ""
        if self.base != "de" and not follower[:1].islower():
            return f"{self._cardinal(number)}."
        if self.base in INFLECTED_ORDINALS:
            if follower.lower() not in MONTHS.get(self.base, "").split() or not 1 <= int(number) <= 31:
                raise _NotKnown
            said = self._day_ordinal(int(number), follower)
            if self.base == "is" and not self._after_preposition(found):
                raise _NotKnown(said)
            return said
        ordinal = self._words(int(number), to="ordinal")
        if self.base != "de":
            return ordinal
        # Among several ordinals, the first has the article: am dritten und vierten Mai.
        before = re.sub(r"(?:\d{1,4}\.\s+(?:und|oder|bis|sowie|/)\s+)+$", "", found.string[: found.start()])
        earlier, article = ["", "", *re.findall(r"\w+", before.lower())][-2:]
        if not re.search(r"\w\s+$", before):
            article = ""
        if article == "der":
            return ordinal + ("n" if earlier in GERMAN_PREPOSITIONS else "")
        for ending, articles in GERMAN_ENDINGS.items():
            if article in articles.split():
                return ordinal + ending
        if follower.lower() in GERMAN_MONTHS or follower[:1].islower():
            return f"{ordinal}r"
        return f"{self._cardinal(number)}."

    def _fraction(self, written: str) -> str:
        """Return the words for a fraction, perhaps with a whole number, or for two numbers with a slash."""
        plain = unicodedata.normalize("NFKC", re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", written)).replace("⁄", "/")
        whole, _, part = plain.rpartition(" ")
        count, parts = map(int, part.split("/"))
        if not 0 < count < parts or parts not in MOST_PARTS:
            if whole:
                raise _NotKnown
            return " ".join(map(self._cardinal, part.split("/")))
        if whole and self.base in AND_A_HALF:
            if (count, parts) != (1, 2) or whole == "1":  # półtora, полтора
                raise _NotKnown
            number = re.sub("kettő$", "két", self._number(whole))
            return f"{number} {AND_A_HALF[self.base]}"
        said = self._parts(count, parts, bool(whole))
        if not whole:
            return said
        number = self._number(whole)
        if self.base == "ja":
            return f"{number}と{said}"
        if self.base == "de" and parts == 2:
            return f"{ONE['de'] if whole == '1' else number}{said}"
        return " ".join(filter(None, [number, WITH_PART.get(self.base, ""), said]))

    def _parts(self, count: int, parts: int, with_whole: bool) -> str:
        if (count, parts) == (1, 2) and self.base in HALVES:
            return HALVES[self.base]
        if (other := self._other_parts(count, parts)) is not None:
            return other
        if self.base not in PART_ENDINGS or parts > LARGEST_PART.get(self.base, 1000):
            raise _NotKnown
        singular, _, plural = PARTS[self.base].get(parts, "").partition("|")
        if not singular:
            stem = self._words(parts, to="ordinal")
            stem = stem.removesuffix("de") if stem.endswith("nde") and self.base == "sv" else stem
            stem = stem.removesuffix("o") if self.base == "it" else stem
            singular, plural = (f"{stem}{ending}" for ending in PART_ENDINGS[self.base])
            if self.base == "de":
                singular, plural = singular.capitalize(), plural.capitalize()
        if count > 1:
            return f"{self._words(count)} {plural}"
        if with_whole and parts == 2 and self.base in ("fr", "es", "it", "pt", "de"):
            return f"ein{singular}" if self.base == "de" else singular
        one = ONE.get(self.base) or ("a" if with_whole and parts == 2 else "one")
        return f"{one} {singular}"

    def _other_parts(self, count: int, parts: int) -> str | None:
        """Return a fraction in languages that don't form it from ordinals and endings; None in others."""
        said, divided = self._words(count), self._words(parts)
        match self.base:
            case "ja":
                return f"{divided}分の{said}"
            case "ko":
                return f"{divided}분의 {said}"
            case "vi":
                return f"{said} phần {'tư' if parts == 4 else divided}"
            case "id":
                return f"{'se' if count == 1 else f'{said} '}per{divided}"
        if self.base == "fi" and 3 <= parts <= 10:
            return f"{said} {self._words(parts, to='ordinal')}osa{'' if count == 1 else 'a'}"
        words = FEW_PARTS.get(self.base, OTHER_PARTS.get(self.base, "")).split()
        if not words:
            return None
        word = words[parts - 2] if parts - 2 < len(words) else "?"
        if word == "?":
            raise _NotKnown
        if self.base == "tr":
            return f"{word} {said}"
        if self.base in FEMININE:
            one, few, many = word.split("|")
            said = FEMININE[self.base].split()[count - 1] if count <= 2 else said
            return f"{said} {one if count == 1 else few if count <= 4 else many}"
        singular, _, plural = word.partition("|")
        said = {"hu": "két", "no": said}[self.base] if count == 2 else said
        one = "en" if self.base == "no" else said
        return f"{one} {singular}" if count == 1 else f"{said} {plural or singular}"

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
        except Exception:  # num2words has no word for so large a number; in Amharic, from a thousand on
            return self._digits(written)

    def _digits(self, written: str) -> str:
        return self.space.join(self._words(int(x)) for x in written if x.isdecimal())

    def _number(self, written: str) -> str:
        """Return the words for a number without sign."""
        plain = self.group.sub("", written) if self.grouped.fullmatch(written) else written
        mark = next((x for x in plain if x in ".,"), self.decimal)
        point = self.point if mark == self.decimal else OTHER_MARK.get(self.base, self.point)
        whole, _, fraction = self._plain(written).partition(".")
        if not fraction:
            return self._words(int(whole))
        if self.base == "ru" or (self.base == "hu" and int(fraction)):  # said as tenths, hundredths
            return self._words(Decimal(f"{whole}.{fraction}"))
        # num2words would drop zeros at the end.
        last = fraction.lstrip("0") if self.base in FRACTION_AS_NUMBER else ""
        first, *others = (self._words(int(x)) for x in (whole, *fraction.removesuffix(last), last) if x)
        return self.space.join([first, point, *others])

    def _time(self, hour: str, minute: str) -> str:
        minutes = "" if minute == "00" else self._words(int(minute))
        if self.base == "en":
            minutes = f"oh {minutes}" if minutes and minute[0] == "0" else minutes or "o'clock"
        return f"{self._words(int(hour))} {minutes}"

    def _money(self, written: str) -> str:
        number = self.number.search(written)
        assert number is not None
        sign = (written[: number.start()].strip() or written[number.end() :].strip()).removeprefix("US")
        amount = Decimal(self._plain(number[0]))
        scale = [SCALE_WORDS[x] for x in re.findall(r"(?<=[\d\s-])[a-z]+$", written)]
        if scale or (amount != round(amount, 2) and sign not in self.signs):
            return " ".join([self._number(number[0]), *scale, self._sign(sign)])
        if sign in self.signs:
            return self._counted(number[0], sign)
        whole, rest = self._paid(amount, CURRENCIES[sign])
        if not amount % 1:
            return whole
        return f"{whole} {rest}" if amount >= 1 else rest

    def _paid(self, amount: Decimal, currency: str) -> tuple[str, str]:
        """Return the words for a sum of money: units and hundredths."""
        value = amount.quantize(Decimal("0.01"))
        form = {"to": "currency", "currency": currency, "separator": " |"}
        try:
            said = self._words(value, **form)
        except (TypeError, NotImplementedError):  # num2words has the currency for Brazil, not for Portugal
            said = num2words(value, lang=self.base, **form)
        whole, _, rest = said.partition("|")
        return whole.strip(), rest.strip()

    def _plain(self, written: str) -> str:
        """Return a number with a decimal point and without marks that group its digits."""
        if self.grouped.fullmatch(written):
            written = self.group.sub("", written)
        return written.replace(",", ".")

    def _words(self, value: int | Decimal, **form: str) -> str:
        # Hyphens would turn known words into new ones: twenty-five.
        return " ".join(re.sub("[-‐,]", " ", num2words(value, lang=self.code, **form)).split())
