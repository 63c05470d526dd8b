"""Words for signs and fractions by language, where num2words has none."""

# `singular|plural` of the unit: `5 °` is five degrees. For sums of money, num2words knows more.
SIGNS: dict[str, dict[str, str]] = {
    "en": {
        "%": "percent",
        "&": "and",
        "+": "plus",
        "=": "equals",
        "×": "times",
        "@": "at",
        "#": "number",
        "§": "section",
        "°": "degree|degrees",
        "²": "squared",
        "³": "cubed",
        "¥": "yen|yen",
        "¢": "cent|cents",
        "₩": "won|won",
        "₹": "rupee|rupees",
        "₽": "rouble|roubles",
    },
    "de": {
        "%": "Prozent",
        "&": "und",
        "+": "plus",
        "=": "gleich",
        "×": "mal",
        "@": "at",
        "#": "Nummer",
        "§": "Paragraph",
        "°": "Grad|Grad",
        "²": "hoch zwei",
        "³": "hoch drei",
        "¥": "Yen|Yen",
        "¢": "Cent|Cent",
        "₩": "Won|Won",
        "₹": "Rupie|Rupien",
        "₽": "Rubel|Rubel",
    },
    "fr": {
        "%": "pour cent",
        "&": "et",
        "+": "plus",
        "=": "égale",
        "×": "fois",
        "@": "arobase",
        "#": "numéro",
        "°": "degré|degrés",
        "²": "au carré",
        "³": "au cube",
        "¥": "yen|yens",
        "¢": "cent|cents",
        "₹": "roupie|roupies",
        "₽": "rouble|roubles",
    },
    "es": {
        "%": "por ciento",
        "&": "y",
        "+": "más",
        "=": "igual a",
        "×": "por",
        "@": "arroba",
        "#": "número",
        "°": "grado|grados",
        "²": "al cuadrado",
        "³": "al cubo",
        "¢": "centavo|centavos",
    },
    "it": {
        "%": "per cento",
        "&": "e",
        "+": "più",
        "=": "uguale",
        "×": "per",
        "@": "chiocciola",
        "#": "numero",
        "°": "grado|gradi",
        "²": "al quadrato",
        "³": "al cubo",
        "¥": "yen|yen",
        "¢": "centesimo|centesimi",
        "₹": "rupia|rupie",
        "₽": "rublo|rubli",
    },
    "pt": {
        "%": "por cento",
        "&": "e",
        "+": "mais",
        "=": "igual a",
        "×": "vezes",
        "@": "arroba",
        "#": "número",
        "°": "grau|graus",
        "²": "ao quadrado",
        "³": "ao cubo",
        "R$": "real|reais",
        "¥": "iene|ienes",
        "¢": "centavo|centavos",
        "₹": "rupia|rupias",
        "₽": "rublo|rublos",
    },
    "nl": {
        "%": "procent",
        "&": "en",
        "+": "plus",
        "=": "is",
        "×": "keer",
        "@": "apenstaartje",
        "#": "nummer",
        "°": "graad|graden",
        "²": "kwadraat",
        "³": "tot de derde",
        "¥": "yen|yen",
        "¢": "cent|cent",
    },
    "sv": {
        "%": "procent",
        "&": "och",
        "+": "plus",
        "=": "lika med",
        "×": "gånger",
        "@": "snabel-a",
        "#": "nummer",
        "°": "grad|grader",
        "²": "i kvadrat",
        "³": "i kubik",
        "$": "dollar|dollar",
        "€": "euro|euro",
        "£": "pund|pund",
        "¥": "yen|yen",
    },
    "da": {
        "%": "procent",
        "&": "og",
        "+": "plus",
        "=": "lig med",
        "×": "gange",
        "@": "snabel-a",
        "#": "nummer",
        "°": "grad|grader",
        "²": "i anden",
        "³": "i tredje",
        "$": "dollar|dollars",
        "€": "euro|euro",
        "£": "pund|pund",
        "¥": "yen|yen",
    },
    "no": {
        "%": "prosent",
        "&": "og",
        "+": "pluss",
        "=": "er lik",
        "×": "ganger",
        "@": "krøllalfa",
        "#": "nummer",
        "°": "grad|grader",
        "²": "i andre",
        "³": "i tredje",
        "$": "dollar|dollar",
        "€": "euro|euro",
        "£": "pund|pund",
        "¥": "yen|yen",
    },
    "ja": {
        "%": "パーセント",
        "&": "アンド",
        "+": "プラス",
        "=": "イコール",
        "×": "かける",
        "@": "アット",
        "#": "ナンバー",
        "°": "度|度",
        "²": "の二乗",
        "³": "の三乗",
        "$": "ドル|ドル",
        "€": "ユーロ|ユーロ",
        "£": "ポンド|ポンド",
        "¥": "円|円",
        "¢": "セント|セント",
        "₩": "ウォン|ウォン",
    },
    "ko": {
        "%": "퍼센트",
        "$": "달러|달러",
        "¥": "엔|엔",
        "₩": "원|원",
        "€": "유로|유로",
        "£": "파운드|파운드",
    },
    "tr": {
        "%": "yüzde",
        "&": "ve",
        "+": "artı",
        "$": "dolar|dolar",
        "€": "avro|avro",
        "£": "sterlin|sterlin",
        "₺": "lira|lira",
    },
    "hu": {
        "%": "százalék",
        "&": "és",
        "+": "plusz",
        "$": "dollár|dollár",
        "€": "euró|euró",
        "£": "font|font",
        "¥": "jen|jen",
    },
    "id": {"%": "persen", "&": "dan"},
    "pl": {"%": "procent", "&": "i", "+": "plus"},
    "cs": {"%": "procent", "&": "a", "+": "plus"},
    "fi": {"%": "prosenttia", "&": "ja", "+": "plus"},
    "ru": {"%": "процентов", "&": "и", "+": "плюс"},
    "uk": {"%": "відсотків", "&": "і", "+": "плюс"},
}
# The word for one before a unit.
ONE = {
    "de": "ein",
    "fr": "un",
    "es": "un",
    "it": "un",
    "pt": "um",
    "nl": "een",
    "sv": "en",
    "da": "en",
    "no": "en",
}
# Languages in which percent counts as a unit, too: ein Prozent, but uno por ciento.
COUNTED_PERCENT = frozenset(["de", "sv", "da", "no"])
# Denominators, `singular|plural`, unless they are the ordinal with an ending.
PARTS: dict[str, dict[int, str]] = {
    "en": {2: "half|halves", 4: "quarter|quarters"},
    "de": {2: "halb|Halbe"},
    "fr": {2: "demi|demis", 3: "tiers|tiers", 4: "quart|quarts"},
    "es": {2: "medio|medios", 3: "tercio|tercios"},
    "it": {2: "mezzo|mezzi"},
    "pt": {2: "meio|meios", 3: "terço|terços"},
    "nl": {2: "half|halve", 4: "kwart|kwart"},
    "sv": {2: "halv|halva"},
    "da": {2: "halv|halve"},
}
# Endings, singular and plural, that turn ordinals into denominators, in Spanish and Portuguese up to ten.
PART_ENDINGS = {
    "en": ("", "s"),
    "de": ("l", "l"),
    "fr": ("", "s"),
    "es": ("", "s"),
    "it": ("o", "i"),
    "pt": ("", "s"),
    "nl": ("", ""),
    "sv": ("del", "delar"),
    "da": ("del", "dele"),
}
LARGEST_PART = {"es": 10, "pt": 10}
# The conjunction in two and a half.
WITH_PART = {"en": "and", "fr": "et", "es": "y", "it": "e", "pt": "e", "nl": "en", "sv": "och", "da": "og"}
# The decimal mark that isn't the language's.
OTHER_MARK = {
    "de": "Punkt",
    "fr": "point",
    "es": "punto",
    "it": "punto",
    "pt": "ponto",
    "nl": "punt",
    "sv": "punkt",
    "da": "punktum",
    "no": "punktum",
}
# German: words before an ordinal, by its ending. After a preposition, `der` is feminine: in der dritten.
GERMAN_ENDINGS = {
    "n": "am im vom zum zur beim dem den des einem einen einer eines diesem diesen dieser jedem jeden "
    "seinem seinen ihrem ihren meinem meinen unserem unseren keinem keinen",
    "": "die das diese dieses jede jedes eine keine seine ihre meine unsere welche",
    "r": "ein kein sein ihr mein unser jeder",
}
GERMAN_PREPOSITIONS = frozenset(
    [
        "in",
        "an",
        "auf",
        "aus",
        "bei",
        "mit",
        "nach",
        "von",
        "vor",
        "zu",
        "seit",
        "ab",
        "gegenüber",
        "während",
        "wegen",
        "trotz",
        "unter",
        "über",
        "zwischen",
    ]
)
GERMAN_MONTHS = frozenset(
    [
        "januar",
        "jänner",
        "februar",
        "märz",
        "april",
        "mai",
        "juni",
        "juli",
        "august",
        "september",
        "oktober",
        "november",
        "dezember",
    ]
)
# Months after a day, in forms that tell the case of its ordinal: a genitive in do 3. května. Icelandic months
# have one form; the word before the day tells it.
MONTHS = {
    "cs": "ledna února března dubna května června července srpna září října listopadu prosince",
    "sk": "januára februára marca apríla mája júna júla augusta septembra októbra novembra decembra",
    "sl": "januarja februarja marca aprila maja junija julija avgusta septembra oktobra novembra decembra",
    "sr": "januara februara marta aprila maja juna jula avgusta septembra oktobra novembra decembra",
    "pl": "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września października listopada "
    "grudnia",
    "ru": "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
    "uk": "січня лютого березня квітня травня червня липня серпня вересня жовтня листопада грудня",
    "sv": "januari februari mars april maj juni juli augusti september oktober november december",
    "fi": "tammikuuta helmikuuta maaliskuuta huhtikuuta toukokuuta kesäkuuta heinäkuuta elokuuta syyskuuta "
    "lokakuuta marraskuuta joulukuuta",
    "is": "janúar febrúar mars apríl maí júní júlí ágúst september október nóvember desember",
    "lv": "janvāris februāris marts aprīlis maijs jūnijs jūlijs augusts septembris oktobris novembris "
    "decembris janvāra februāra marta aprīļa maija jūnija jūlija augusta septembra oktobra novembra decembra "
    "janvārī februārī martā aprīlī maijā jūnijā jūlijā augustā septembrī oktobrī novembrī decembrī",
}
_ENGLISH_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
ENGLISH_DAY = rf"(?:{_ENGLISH_MONTHS}) (?:[12]?\d|3[01])(?![\w%°]|[.,/:–-]\d)"
_SHORT_MONTHS = "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec"
# Numbers that are read in several ways or with an unknown ending: days, years, endings, times.
UNCERTAIN = {
    "en": rf"\b\d{{1,2}} (?:{_ENGLISH_MONTHS})\b|(?:{_ENGLISH_MONTHS}) \d{{1,2}}[–-]\d+"
    rf"|\b(?:{_SHORT_MONTHS})\.? \d{{1,2}}\b",
    "ca": r"\d+(?:rs?|ns?|ts?|è|é|ens|a|es)\b|\d+\s?h\s?\d+",
    "es": r"\d+\s?h\s?\d+",
    "it": r"\d+\s?h\s?\d+",
    "pt": r"\d+\s?h\s?\d+",
    "hu": r"\b(?:január|február|március|április|május|június|július|augusztus|szeptember|október|november"
    r"|december) \d{1,2}\b",
    "lt": r"\d+ (?:d\.|met\w+)",
    "ru": r"\d{4} (?:год\w{0,2}\b|г\.)",
    "uk": r"\d{4} (?:р(?:ік|оку|оці|оком)\b|р\.)",
    "pl": r"\d{4} (?:rok(?:u|iem)?\b|r\.)",
}
# Languages in which an ending after a hyphen or colon makes a number another word: 2-ojo, 5:n, 3-й, 3-mal.
ENDINGS = "be ca cs da de fi hu is kz lt lv nl no pl ro ru sk sl sr sv uk"
# Spanish and Portuguese words after a number that it doesn't agree with, or that are masculine in spite of
# their ending; also those with the ending -mas.
NO_FEMININE = "de y e o a al en por para con que es son no se hasta días dias mapas planetas"
# Words after which a day is certainly a genitive (in Icelandic: not a nominative): do 3 maja, but dziś jest
# 3 maja.
BEFORE_DAYS = {
    "pl": "do od dnia około z",
    "ru": "с до от после около",
    "uk": "з до від після близько",
    "is": "þann frá til um fyrir eftir á við með og",
}
# Genitives of the first twenty ordinals and of the thirtieth, where num2words has no ordinals. In
# Icelandic, the form of all cases but the nominative; the second, `?`, has three.
GENITIVE_DAYS = {
    "cs": "prvního druhého třetího čtvrtého pátého šestého sedmého osmého devátého desátého jedenáctého "
    "dvanáctého třináctého čtrnáctého patnáctého šestnáctého sedmnáctého osmnáctého devatenáctého "
    "dvacátého třicátého",
    "sk": "prvého druhého tretieho štvrtého piateho šiesteho siedmeho ôsmeho deviateho desiateho jedenásteho "
    "dvanásteho trinásteho štrnásteho pätnásteho šestnásteho sedemnásteho osemnásteho devätnásteho "
    "dvadsiateho tridsiateho",
    "sr": "prvog drugog trećeg četvrtog petog šestog sedmog osmog devetog desetog jedanaestog dvanaestog "
    "trinaestog četrnaestog petnaestog šesnaestog sedamnaestog osamnaestog devetnaestog dvadesetog "
    "tridesetog",
    "is": "fyrsta ? þriðja fjórða fimmta sjötta sjöunda áttunda níunda tíunda ellefta tólfta þrettánda "
    "fjórtánda fimmtánda sextánda sautjánda átjánda nítjánda tuttugasta þrítugasta",
}
# Latvian: stems of the first nineteen ordinals, and of tens; their endings follow from the month's ending.
LATVIAN_DAYS = (
    "pirm otr treš ceturt piekt sest septīt astot devīt desmit vienpadsmit divpadsmit trīspadsmit "
    "četrpadsmit piecpadsmit sešpadsmit septiņpadsmit astoņpadsmit deviņpadsmit"
)
LATVIAN_TENS = ("divdesmit", "trīsdesmit")
LATVIAN_ENDINGS = {"s": "ais", "a": "ā", "ā": "ajā", "ī": "ajā"}
# Denominators from 2 on: a word, or the forms `one|two|five` in languages with three plural forms.
FEW_PARTS = {
    "cs": "polovina|poloviny|polovin třetina|třetiny|třetin čtvrtina|čtvrtiny|čtvrtin pětina|pětiny|pětin "
    "šestina|šestiny|šestin sedmina|sedminy|sedmin osmina|osminy|osmin devítina|devítiny|devítin "
    "desetina|desetiny|desetin",
    "sk": "polovica|polovice|polovíc tretina|tretiny|tretín štvrtina|štvrtiny|štvrtín pätina|pätiny|pätín "
    "šestina|šestiny|šestín sedmina|sedminy|sedmín osmina|osminy|osmín devätina|devätiny|devätín "
    "desatina|desatiny|desatín",
    "pl": "? trzecia|trzecie|trzecich czwarta|czwarte|czwartych piąta|piąte|piątych szósta|szóste|szóstych "
    "siódma|siódme|siódmych ósma|ósme|ósmych dziewiąta|dziewiąte|dziewiątych dziesiąta|dziesiąte|dziesiątych",
    "ru": "вторая|вторых|вторых третья|третьих|третьих четвёртая|четвёртых|четвёртых пятая|пятых|пятых "
    "шестая|шестых|шестых седьмая|седьмых|седьмых восьмая|восьмых|восьмых девятая|девятых|девятых "
    "десятая|десятых|десятых",
}
# One and two before denominators, which are feminine.
FEMININE = {"cs": "jedna dvě", "sk": "jedna dve", "pl": "jedna dwie", "ru": "одна две"}
OTHER_PARTS = {
    "hu": "fél harmad negyed ötöd hatod heted nyolcad kilenced tized",
    "tr": "? üçte dörtte beşte altıda yedide sekizde dokuzda onda",
    "no": "? tredjedel|tredjedeler fjerdedel|fjerdedeler",
}
HALVES = {"fi": "puoli", "hu": "fél", "id": "setengah", "no": "en halv", "tr": "yarım"}
# A half after a whole number from two on.
AND_A_HALF = {
    "cs": "a půl",
    "fi": "ja puoli",
    "hu": "és fél",
    "id": "setengah",
    "no": "og en halv",
    "pl": "i pół",
    "ru": "с половиной",
    "sk": "a pol",
    "tr": "buçuk",
    "vi": "rưỡi",
}
