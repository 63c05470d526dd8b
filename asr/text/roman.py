"""Converts Roman numerals to digits, as they are read: after rulers, chapters, wars; before centuries."""

import re

NUMERAL = r"(?=[IVXLC])C{0,3}(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}
# Words before a numeral that is read as a cardinal: Chapter IV is chapter four.
COUNTED = {
    "en": "chapter part volume act scene book section phase type class war article appendix title level "
    "stage grade table figure bowl",
    "de": "kapitel teil band akt szene buch abschnitt phase typ klasse artikel anhang stufe tabelle "
    "abbildung",
    "fr": "chapitre tome acte scène livre section phase type classe article annexe titre niveau",
    "nl": "hoofdstuk deel boek akte scène fase type klasse artikel bijlage niveau",
    "sv": "kapitel del bok akt scen fas typ klass artikel bilaga nivå",
}
# Names of rulers, before a numeral that is read as an ordinal; women after the colon.
RULERS = {
    "en": "louis henry george charles william james edward richard philip frederick napoleon nicholas "
    "alexander paul john benedict pius leo gregory innocent clement urban francis ferdinand ptolemy ramses "
    "otto gustav leopold: elizabeth mary catherine anne margaret isabella victoria",
    "de": "ludwig karl friedrich wilhelm heinrich otto georg philipp leopold franz joseph ferdinand "
    "maximilian paul johannes benedikt pius leo gregor innozenz clemens urban napoleon nikolaus alexander: "
    "elisabeth katharina maria margarethe isabella viktoria",
    "fr": "louis henri charles françois philippe napoléon guillaume georges jacques édouard richard frédéric "
    "paul jean benoît pie léon grégoire innocent clément urbain nicolas alexandre: élisabeth catherine marie "
    "marguerite isabelle",
    "es": "felipe carlos luis alfonso fernando enrique jaime juan pablo pedro benedicto pío león gregorio "
    "inocencio clemente urbano guillermo jorge eduardo napoleón nicolás alejandro: isabel catalina maría "
    "margarita",
    "it": "luigi carlo enrico filippo federico vittorio emanuele umberto paolo giovanni benedetto pio leone "
    "gregorio innocenzo clemente urbano guglielmo giorgio edoardo napoleone nicola alessandro: elisabetta "
    "caterina maria margherita isabella",
    "pt": "filipe carlos luís afonso fernando henrique joão paulo pedro bento pio leão gregório inocêncio "
    "clemente urbano guilherme jorge eduardo napoleão nicolau alexandre manuel: isabel catarina maria "
    "margarida",
    "nl": "lodewijk karel willem hendrik filips frederik napoleon nicolaas alexander paulus johannes "
    "benedictus pius leo gregorius leopold boudewijn albert: elizabeth catharina maria margaretha",
    "sv": "karl gustav erik oscar fredrik ludvig henrik filip napoleon nikolaj alexander paulus johannes "
    "benedictus pius leo gregorius: elisabet katarina maria margareta kristina",
}
GERMAN_TITLES = frozenset(["könig", "kaiser", "papst", "königin", "kaiserin", "zar", "zarin"])
DATIVE = frozenset(["von", "vom", "mit", "bei", "zu", "nach", "aus", "seit", "unter", "gegenüber"])
ACCUSATIVE = frozenset(["für", "gegen", "durch", "ohne", "um"])
CENTURY = {"es": "siglo", "it": "secolo", "pt": "século"}
_NUMERALS = re.compile(rf"(?<![\w'’.-])({NUMERAL})(er|ère|re|e|ème|es)?(?![\w'’-])(\.(?=\s|$))?")


def digits_for_roman(text: str, language: str) -> tuple[str, list[str]]:
    """Return a text with digits for its Roman numerals, and the numerals whose reading isn't known.

    Digits are marked as they are read, e.g. `14th`. An unknown numeral of several letters stays and is
    listed; a single letter counts as a word or a name.

    Example:
        >>> digits_for_roman("Louis XIV in Chapter IV of Star Wars VI", "en")
        ('Louis the 14th in Chapter 4 of Star Wars VI', ['Wars VI'])
        >>> digits_for_roman("Von Ludwig XIV. bis ins XX. Jahrhundert", "de")[0]
        'Von Ludwig dem 14ten bis ins 20. Jahrhundert'
    """
    if text.upper() == text:  # in a text of capitals, numerals can't be told from words
        return text, []
    base, missed = re.split("[-_]", language.lower())[0], []

    def replaced(found: re.Match[str]) -> str:
        before = found.string[: found.start()]
        words = re.findall(r"\w+", before) if re.search(r"\w\s+$", before) else []
        said = _said(found, words, base)
        if said is None:
            if len(found[1]) > 1 and not set(found[1]) - set("IVX"):
                missed.append(" ".join([*words[-1:], found[0]]))
            return found[0]
        return said

    return _NUMERALS.sub(replaced, text), missed


def _value(numeral: str) -> int:
    values = [VALUES[x] for x in numeral]
    return sum(-x if x < after else x for x, after in zip(values, [*values[1:], 0], strict=True))


def _said(found: re.Match[str], words: list[str], base: str) -> str | None:
    numeral, ending, stop = found[1], found[2] or "", found[3] or ""
    value, after = _value(numeral), found.string[found.end() :]
    head = words[-1] if words else ""
    if ending:  # le XXe siècle, François Ier; but Le, Les, Ce and Ces are words
        known = len(numeral) > 1 or numeral in "VX" or ending == "er"
        return f"{value}{ending}" if base == "fr" and known else None
    if base == "de" and stop and re.match(r"\s+Jahrhundert|\s+Weltkrieg", after):
        return f"{value}."
    if base == "it" and re.match(rf"\s+{CENTURY['it']}\b", after):
        return f"{value}º"
    if head.lower() == CENTURY.get(base) and base != "it":
        # Spaniards say both siglo quinto and siglo cinco.
        return f"{value}{stop}" if value > 10 else f"{value}º{stop}" if base == "pt" else None
    # I is a pronoun, too: Chapter I, but the chapter I wrote.
    alone = numeral == "I" and not re.match(r"[,;:.)]|$|\s+of\b", stop + after)
    if head.lower() in COUNTED.get(base, "").split() and (len(numeral) > 1 or head[0].isupper()):
        return None if alone and base == "en" and head.lower() != "war" else f"{value}{stop}"
    men, _, women = RULERS.get(base, "").partition(":")
    genitive = base == "de" and head.endswith("s") and head.lower() not in men.split()
    name = head.lower().removesuffix("s") if genitive else head.lower()
    woman = name in women.split()
    if not head[:1].isupper() or value > 39 or not (woman or name in men.split()) or (alone and base == "en"):
        return None
    match base:
        case "en":
            return f"the {_english(value)}{stop}"
        case "fr":
            return f"{'1re' if woman else '1er'}{stop}" if value == 1 else f"{value}{stop}"
        case "it":
            return f"{value}{'ª' if woman else 'º'}{stop}"
        case "es" | "pt":
            return f"{value}{stop}" if value > 10 else f"{value}{'ª' if woman else 'º'}{stop}"
        case "nl":
            return f"de {value}{'ste' if value >= 20 or value in (1, 8) else 'de'}{stop}"
        case "sv":
            return f"den {value}:e{stop}"
    return _german(value, words, woman, genitive, found.string[: found.start()], stop + after)


def _english(value: int) -> str:
    teen = 10 < value % 100 < 20
    return f"{value}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(value % 10, 'th')}"


def _german(value: int, words: list[str], woman: bool, genitive: bool, before: str, after: str) -> str | None:
    """Return a ruler's number, if its grammatical case is certain: Ludwig der 14te, von Ludwig dem 14ten."""
    end = "." if re.match(r"\.(?:\s*$|\s+[^\W\d_a-zäöü])", after) else ""
    if genitive:
        return f"{'der' if woman else 'des'} {value}ten{end}"
    names = len(words) - 1
    men, _, women = RULERS["de"].partition(":")
    while names and words[names - 1].lower() in {*men.split(), *women.split(), *GERMAN_TITLES}:
        names -= 1
    leading = words[names - 1].lower() if names else ""
    if leading in DATIVE:
        return f"{'der' if woman else 'dem'} {value}ten{end}"
    if leading in ACCUSATIVE:
        return f"{'die' if woman else 'den'} {value}{'te' if woman else 'ten'}{end}"
    sentence = re.split(r"[.!?:]\s", before)[-1]
    if len(re.findall(r"\w+", sentence)) == len(words) - names:
        return f"{'die' if woman else 'der'} {value}te{end}"
    return None
