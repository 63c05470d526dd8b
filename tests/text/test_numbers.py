"""Numbers as they are spoken."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from num2words import CONVERTER_CLASSES

from asr.errors import UserError
from asr.preparation.options import OwnDataOptions
from asr.preparation.own_data import text_rule
from asr.text.normalise import normalise
from asr.text.numbers import knows_numbers, spoken_numbers, unspoken


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        (
            "en",
            "1,234,567 and 0.50",
            "one million two hundred and thirty four thousand five hundred and sixty "
            "seven and zero point five zero",
        ),
        (
            "en",
            "In 1984, 2005, 2010 and 2100",
            "in nineteen eighty four two thousand and five twenty ten and two thousand one hundred",
        ),
        ("en", "21st, 2nd and 3RD", "twenty first second and three rd"),
        ("en", "the 1990s, the 20's", "the nineteen nineties the twenties"),
        (
            "en",
            "$3.50, £1, 5 € and $5 million",
            "three dollars fifty cents one pound sterling five euro and five million dollars",
        ),
        ("en", "12.5% of 50 %", "twelve point five percent of fifty percent"),
        ("en", "at 10:30, 9:05 and 7:00", "at ten thirty nine oh five and seven o'clock"),
        ("en", "-5 or 3-4 or 5-year-old", "minus five or three four or five year-old"),
        (
            "en",
            "call 07700900123, room 007",
            "call zero seven seven zero zero nine zero zero one two three room zero zero seven",
        ),
        ("en", "12/25/2024", "twelve twenty five twenty twenty four"),
        ("en", "5G, COVID-19, mp3", "five g covid nineteen mp three"),
        ("en", "<NOISE> 7 <5>", "<NOISE> seven <5>"),
        ("en-GB", "two 2", "two two"),
        (
            "de",
            "1.234,5 und 3.10.1990",
            "eintausendzweihundertvierunddreißig komma fünf und drei zehn neunzehnhundertneunzig",
        ),
        ("fr", "le 1er mai, 80 %", "le premier mai quatre vingts pour cent"),
        ("es", "1.000.000 y 5 €", "un millón y cinco euros"),
        ("tr", "5 €", "beş avro"),  # num2words has no amounts of money in Turkish
    ],
)
def test_numbers_are_read_as_they_are_written(language: str, written: str, spoken: str) -> None:
    assert normalise(written, "spoken", language) == spoken


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("ja", "会費は1500円 -5", "会費は千五百円 マイナス五"),
        ("ko", "1500", "천오백"),
        ("bn", "1500 -5", "এক হাজার পাঁচশত মাইনাস পাঁচ"),
        ("sv", "år 1984", "år etttusen niohundraåttiofyra"),
        ("is", "1500", "eitt þúsund fimm hundruð"),
        ("vi", "1500 -5", "một nghìn năm trăm âm năm"),
        ("id", "25", "dua puluh lima"),
        ("fa", "25", "بیست و پنج"),
        ("de", "1984", "neunzehnhundertvierundachtzig"),
        ("am", "1500 3500", "አሥራ አምስት መቶ ሦስት አምስት ዜሮ ዜሮ"),  # num2words fails from a thousand on
        ("it", "-5", "meno cinque"),
        ("pl", "-5", "minus pięć"),
    ],
)
def test_a_number_is_no_era_and_stays_in_no_language(language: str, written: str, spoken: str) -> None:
    """1500 yen were the ninth year of Meiō; in Swedish 1984, in Vietnamese all numbers stayed digits."""
    assert spoken_numbers(written, language) == spoken


@settings(deadline=None)
@given(
    st.text(alphabet="0123456789.,:%$€-/ ast", max_size=20),
    st.sampled_from(sorted(CONVERTER_CLASSES)),
)
@example("1500 3500 -3 2,50 $5 50% 10:30", "am")
@example("999,999,999,999,999,999,999", "en_IN")
def test_no_digit_is_left(written: str, language: str) -> None:
    """A digit that training never saw was `<unk>` in every reference that has one."""
    assert not any(x.isdigit() for x in spoken_numbers(written, language))


@settings(deadline=None)
@given(
    st.text(alphabet="0123456789.,:%$€-/ ast½²°#@&+=¥()§×<>[]₪'º", max_size=14),
    st.sampled_from(sorted(CONVERTER_CLASSES)),
)
def test_spoken_text_has_no_signs_and_stays(written: str, language: str) -> None:
    spoken = normalise(written, "spoken", language)
    assert not unspoken(spoken, language)
    assert normalise(spoken, "spoken", language) == spoken


def test_no_digit_is_left_in_any_language() -> None:
    written = "0 7 1500 1984 3500 -3 2,50 0.5 $5 3.499 € 50% 10:30 1,000,000 3.10.1990 07700900123"
    for language in sorted(CONVERTER_CLASSES):
        assert not any(x.isdigit() for x in spoken_numbers(written, language)), language


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        (
            "en",
            "2.50, 3.10, 10.0, 0.05",
            "two point five zero, three point one zero, ten point zero, zero point zero five",
        ),
        ("en", "-0.5", "minus zero point five"),
        ("en", "5.0%", "five point zero percent"),
        ("de", "0,10", "null Komma eins null"),
        ("fr", "1,50", "un virgule cinq zéro"),
        ("it", "3,5", "tre virgola cinque"),
        ("tr", "2,05", "iki virgül sıfır beş"),
        ("pl", "2,50 10,0", "dwa przecinek pięćdziesiąt dziesięć przecinek zero"),
        ("ru", "2,50 10,0", "две целых пятьдесят сотых десять целых ноль десятых"),
        ("hu", "2,5 10,0", "kettő egész öt tized tíz egész nulla"),
        ("ja", "2.50", "二点五零"),
        ("fa", "0.05", "صفر ممیز صفر پنج"),
        ("vi", "2,5", "hai phẩy năm"),
    ],
)
def test_zeros_after_the_decimal_mark_are_said(language: str, written: str, spoken: str) -> None:
    """2.50 became two point five, 10.0 ten, and Italian 3,5 three."""
    assert spoken_numbers(written, language) == spoken


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("en", "$2.50, $2.5, $10.00", "two dollars fifty cents, two dollars fifty cents, ten dollars"),
        ("en", "$3.499", "three point four nine nine dollars"),
        ("en", "$0.001", "zero point zero zero one dollars"),
        ("en", "$3,499", "three thousand four hundred and ninety nine dollars"),
        ("en", "$1.50 million", "one point five zero million dollars"),
        ("de", "1,379 €", "eins Komma drei sieben neun Euro"),
        ("en", "R$ 5, US$5, A$ 5", "R$ five, five dollars, A$ five"),
        ("ja", "会費は¥5", "会費は五円"),
    ],
)
def test_sums_are_read_as_they_are_written(language: str, written: str, spoken: str) -> None:
    """$3.499 became three dollars fifty cents, R$ 5 (reais) five dollars."""
    assert spoken_numbers(written, language) == spoken


def test_ordinals_have_marks_between_their_digits() -> None:
    assert spoken_numbers("the 1,000th time", "en") == "the one thousandth time"
    assert spoken_numbers("le 1 000e", "fr") == "le millième"


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("de", "der 3. Mai, am 3. und 4. Mai", "der dritte Mai, am dritten und vierten Mai"),
        (
            "de",
            "im 21. Jahrhundert, in der 2. Klasse",
            "im einundzwanzigsten Jahrhundert, in der zweiten Klasse",
        ),
        (
            "de",
            "Das war 2010. Danach kam die 3. Auflage.",
            "Das war zweitausendzehn. Danach kam die dritte Auflage.",
        ),
        ("it", "la 3ª volta, il 2° posto, 1° maggio", "la terza volta, il secondo posto, primo maggio"),
        ("nl", "de 3e, 20ste en 2de", "de derde, twintigste en tweede"),
        ("sv", "den 3:e och 1:a", "den tredje och första"),
        ("da", "den 3. maj", "den tredje maj"),
        ("es", "1ª, 3.er, 21ª y 2do", "primera, tercer, vigésima primera y segundo"),
        ("fr", "la 1re, le 2nd et la 21e", "la première, le second et la vingt et unième"),
    ],
)
def test_ordinals_have_their_endings(language: str, written: str, spoken: str) -> None:
    """`3. Mai` became drei Mai, `3ª` terzo, Dutch `3e` drie e, Swedish `3:e` tre e."""
    assert spoken_numbers(written, language) == spoken


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("en", "$3 billion, $3bn", "three billion dollars, three billion dollars"),
        ("en", "¥500, ¥1 and ₹5", "five hundred yen, one yen and five rupees"),
        ("en", "$0.50 or 50¢", "fifty cents or fifty cents"),
        ("en", "-$5, -5 €, -2%", "minus five dollars, minus five euro, minus two percent"),
        ("en", "¥1984", "one thousand nine hundred and eighty four yen"),
        ("de", "€5 m hoch", "fünf Euro m hoch"),
        ("en", "5 million $, 2 % and a few %", "five million dollars, two percent and a few percent"),
        ("pt-BR", "R$ 5 e 5 €", "cinco reais e cinco euros"),
        ("es", "3 millones de €", "tres millones de euros"),
        ("sv", "5 € och 1 %", "fem euro och en procent"),
        ("ja", "10%と5€", "十パーセントと五ユーロ"),
    ],
)
def test_money_has_its_unit(language: str, written: str, spoken: str) -> None:
    """¥1 became one, and in Japanese, € and % were gone."""
    assert spoken_numbers(written, language) == spoken


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("en", "1/2 of 3/4, 2½ and 2 1/2", "one half of three quarters, two and a half and two and a half"),
        ("en", "24/7, 9/11", "twenty four seven, nine eleven"),
        ("de", "½, 2½, 3/8", "ein halb, zweieinhalb, drei Achtel"),
        ("fr", "2½, 2/3, 3/8", "deux et demi, deux tiers, trois huitièmes"),
        ("es", "2½, 1/3, 3/5", "dos y medio, un tercio, tres quintos"),
        ("it", "½, 3/4, 3/8", "un mezzo, tre quarti, tre ottavi"),
        ("pt", "½, 3/4", "um meio, três quartos"),
        ("nl", "2½, 3/8", "twee en een half, drie achtste"),
        ("sv", "½, 3/8", "en halv, tre åttondelar"),
        ("ja", "½", "二分の一"),
        ("en", "2³, m², R&D, #1 @2", "two cubed, m squared, R and D, number one at two"),
        ("en", "20 °C, -5°", "twenty degrees Celsius, minus five degrees"),
        ("de", "§ 5, 5 °C", "Paragraph fünf, fünf Grad Celsius"),
        ("ja", "5℃", "五度"),
        ("es", "3,5 y 3.5", "tres coma cinco y tres punto cinco"),
        ("pt", "3,5 e 3.5", "três vírgula cinco e três ponto cinco"),
    ],
)
def test_signs_and_fractions_are_said(language: str, written: str, spoken: str) -> None:
    """½ and ³ stayed as labels, and 1/2 of 3/4 was one two of three four; Spanish 3,5 had a punto."""
    assert spoken_numbers(written, language) == spoken


@pytest.mark.parametrize(
    ("written", "digits"),
    [
        ("555-1234", "5551234"),
        ("(555) 123-4567", "5551234567"),
        ("555 123 4567", "5551234567"),
        ("0171/1234567", "01711234567"),
        ("01 23 45 67 89", "0123456789"),
    ],
)
def test_telephone_numbers_are_read_digit_by_digit(written: str, digits: str) -> None:
    """555-1234 was five hundred and fifty five twelve thirty four."""
    assert spoken_numbers(written, "en") == " ".join(spoken_numbers(x, "en") for x in digits)
    assert spoken_numbers("1990-1995", "en") == "nineteen ninety - nineteen ninety five"
    assert spoken_numbers("05-10-1990", "en") == "five ten nineteen ninety"
    assert spoken_numbers("+44 20 7946 0958", "en").startswith("plus four four two zero seven")


@pytest.mark.parametrize(
    ("language", "written", "missed"),
    [
        ("en", "½ cup at 20 °C for 5 ₪", ["₪"]),
        ("en", "R$ 5 ± 2, 5 ≤ 6", ["$", "±", "≤"]),
        ("en", "a 😀 ♪ ~ | b", []),
        ("pl", "3. miejsce, 3/16 i 2³ za 5%", ["3.", "3/16", "³"]),
        ("en", "5 m, iPhone 5s, 5 km, Rocky IV, CD, XXL", ["Rocky IV", "5 m"]),
        ("de", "lief 1 km, dann starb Ludwig XIV.", ["Ludwig XIV", "1 km"]),
        ("ru", "до 5 км, 9 мая, XX век", ["XX", "5 км", "9 мая"]),
        ("fi", "5 km:n", ["5 km:n"]),
        ("he", "5 km", ["5 km"]),
        ("fi", "3. kerros", ["3."]),
        ("am", "5 €", ["€"]),
        ("en", "<NOISE> <5>", []),
    ],
)
def test_what_cannot_be_said_is_listed(language: str, written: str, missed: list[str]) -> None:
    """Signs without words vanished or became labels."""
    assert unspoken(written, language) == missed
    assert not unspoken(normalise(written, "spoken", language), language)


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("en", "5 km/h, 1 kg and 30 m²", "five kilometers per hour, one kilogram and thirty square meters"),
        ("en", "a 5-km run, 5s at 4G", "a five kilometer run, five s at four G"),
        (
            "de",
            "5 km/h, 1 kg, 2 t, 5 m hoch",
            "fünf Kilometer pro Stunde, ein Kilogramm, zwei Tonnen, fünf Meter hoch",
        ),
        ("fr", "15h, 1 h et 2 km", "quinze heures, une heure et deux kilomètres"),
        ("es", "21 km, 21 h, 200 h", "veintiún kilómetros, veintiuna horas, doscientas horas"),
        ("pt", "2 h e 5 km", "duas horas e cinco quilómetros"),
        ("pt-BR", "5 km", "cinco quilômetros"),
        ("it", "1 h, 5 km/h", "un'ora, cinque chilometri all'ora"),
        ("sv", "1 kg, 1 km", "ett kilogram, en kilometer"),
        (
            "ru",
            "1 км, 2 км, 11 км, 2,5 км",
            "один километр, два километра, одиннадцать километров, две целых пять десятых километра",
        ),
        ("ru", "1 %, 3 %, 5%", "один процент, три процента, пять процентов"),
        ("uk", "3 %", "три відсотки"),
        ("pl", "22 km, 5%", "dwadzieścia dwa kilometry, pięć procent"),
        ("cs", "1 %, 2 %, 5 km", "jedno procento, dvě procenta, pět kilometrů"),
        ("fi", "1 km, 3 %", "yksi kilometri, kolme prosenttia"),
        ("tr", "%5, 5 km", "yüzde beş, beş kilometre"),
        ("ja", "5kmと10kg", "五キロメートルと十キログラム"),
    ],
)
def test_units_are_words(language: str, written: str, spoken: str) -> None:
    """5 km/h was five km h, and in Russian any number had procentov."""
    assert spoken_numbers(written, language) == spoken


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        (
            "cs",
            "3. května, 21. ledna, 31. prosince",
            "třetího května, dvacátého prvního ledna, třicátého prvního prosince",
        ),
        ("sk", "30. mája", "tridsiateho mája"),
        ("sl", "21. maja", "enaindvajsetega maja"),
        ("sr", "22. maja", "dvadesetog drugog maja"),
        ("pl", "do 3 maja, od 21 stycznia", "do trzeciego maja, od dwudziestego pierwszego stycznia"),
        ("ru", "с 3 мая до 21 июня", "с третьего мая до двадцать первого июня"),
        ("uk", "до 3 травня", "до третього травня"),
        ("de", "der 14te, am 20sten, ein 3ter", "der vierzehnte, am zwanzigsten, ein dritter"),
        ("fi", "5. toukokuuta, 31. joulukuuta", "viides toukokuuta, kolmaskymmenesensimmäinen joulukuuta"),
        ("is", "frá 5. maí til 21. júní", "frá fimmta maí til tuttugasta og fyrsta júní"),
        (
            "lv",
            "5. maijā, 21. marta, 30. jūnijs",
            "piektajā maijā, divdesmit pirmā marta, trīsdesmitais jūnijs",
        ),
    ],
)
def test_days_before_months_have_the_case_of_their_form(language: str, written: str, spoken: str) -> None:
    """In languages with cases, 3. května was tři. května, and listed."""
    assert spoken_numbers(written, language) == spoken
    assert unspoken(written, language) == []


@pytest.mark.parametrize(
    ("language", "written", "listed"),
    [
        ("is", "í dag er 5. maí", "5."),
        ("is", "þann 2. maí", "2."),
        ("lt", "5. klasė", "5."),
        ("fi", "5. talo", "5."),
        ("lt", "2-ojo", "2-ojo"),
        ("lt", "gegužės 3 d.", "3 d."),
        ("lt", "1984 metais", "1984 metais"),
        ("lv", "2-ais", "2-ais"),
        ("fi", "3:s", "3:s"),
        ("sv", "3:dje", "3:dje"),
        ("ru", "3-й", "3-й"),
        ("ru", "в 1984 году", "1984 году"),
        ("uk", "1984 року", "1984 року"),
        ("pl", "w 1984 r.", "1984 r."),
        ("ca", "el 2n", "2n"),
        ("ro", "al 3-lea", "3-lea"),
        ("hu", "május 3.", "május 3"),
        ("de", "am 3.10. war", "3.10."),
        ("de", "10-mal", "10-mal"),
        ("es", "21 años", "21"),
        ("es", "200 personas", "200"),
        ("pt", "22 casas", "22"),
        ("es", "15h30", "15h30"),
        ("en", "3 May 1990", "3 May"),
        ("en", "Dec. 25", "Dec. 25"),
    ],
)
def test_days_and_ordinals_of_unknown_case_are_listed(language: str, written: str, listed: str) -> None:
    """Some were cardinal numbers without a word: `du ojo` for 2-ojo, `viisi n` for 5:n, `dos n` for 2n."""
    assert unspoken(written, language) == [listed]


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("en", "on May 3, 1990, in May 2019", "on may third nineteen ninety in may twenty nineteen"),
        ("sv", "den 21 juni", "den tjugoförsta juni"),
        ("fr", "à 15h30 et 1h05", "à quinze heures trente et une heure cinq"),
        ("de", "3 Mrd. € und 1,5 Mio. Euro", "drei milliarden euro und eins komma fünf millionen euro"),
        ("de", "1 Mio. Euro", "eine million euro"),
        ("es", "el 21 de mayo, 200 días, 11 años", "el veintiuno de mayo doscientos días once años"),
        ("pt", "21 anos, 12 casas", "vinte e um anos doze casas"),
        ("ru", "2 года", "два года"),
        ("tr", "5'te", "beş'te"),
    ],
)
def test_days_times_and_forms_that_are_certain_are_said(language: str, written: str, spoken: str) -> None:
    """`quinze h trente`, `drei mrd euro`, `den tre maj` and `may three` were labels to train on."""
    assert (normalise(written, "spoken", language), unspoken(written, language)) == (spoken, [])


@pytest.mark.parametrize("sign", ["10^6", "5*3", "~5", "5′", "5'10\"", "192.168.0.1", "1.2.3", "May 3-5"])
def test_numbers_whose_signs_were_dropped_are_listed(sign: str) -> None:
    """10^6 was ten six, ~5 five, and the address 192.168 point one six eight zero point one."""
    assert unspoken(f"about {sign} of them", "en") == [sign]


@pytest.mark.parametrize(
    ("language", "written", "spoken"),
    [
        ("cs", "3/4, 1/2, 5/8, 2½", "tři čtvrtiny, jedna polovina, pět osmin, dva a půl"),
        ("pl", "1/3, 2/3, 5/8, 2½", "jedna trzecia, dwie trzecie, pięć ósmych, dwa i pół"),
        ("ru", "1/2, 3/4, 2½", "одна вторая, три четвёртых, два с половиной"),
        ("fi", "½, 3/4", "puoli, kolme neljäsosaa"),
        ("hu", "½, 2/3, 2½", "fél, két harmad, két és fél"),
        ("tr", "½, 3/4", "yarım, dörtte üç"),
        ("ko", "3/4", "사분의 삼"),
        ("vi", "3/4", "ba phần tư"),
        ("id", "1/3, 3/4", "sepertiga, tiga perempat"),
        ("no", "½, 3/4", "en halv, tre fjerdedeler"),
    ],
)
def test_fractions_of_more_languages(language: str, written: str, spoken: str) -> None:
    assert spoken_numbers(written, language) == spoken


def test_text_without_numbers_or_signs_stays() -> None:
    assert spoken_numbers("Twenty-one,  so what?", "en") == "Twenty-one,  so what?"


@pytest.mark.parametrize(
    ("language", "written", "words"),
    [
        ("hy", "ինչպե՞ս ես, Հայաստա՛ն", "ինչպես ես հայաստան"),
        ("he", 'צה"ל, צה״ל וצ\'יפס "שלום"', "צה״ל צה״ל וצ׳יפס שלום"),
        ("en", "It＇s, don´t and rock`n`roll", "it's don't and rock'n'roll"),
        ("ar", "كـــتاب", "كتاب"),
        ("en", "[inaudible 00:01:02] R&amp;D {breath} <NOISE> </i>", "r and d <NOISE>"),
    ],
)
def test_marks_within_words_do_not_divide_them(language: str, written: str, words: str) -> None:
    """Armenian and Hebrew words fell apart at their marks, and [laughter] was a word."""
    assert normalise(written, "spoken", language) == words


def test_a_language_without_numbers() -> None:
    assert not knows_numbers("xx")
    assert normalise("5 x", "spoken", "xx") == "5 x"
    assert text_rule(OwnDataOptions(text="auto", language="xx")) == "words"
    assert text_rule(OwnDataOptions(text="auto", language="de-AT")) == "spoken"
    assert text_rule(OwnDataOptions(text="lower", language="xx")) == "lower"
    with pytest.raises(UserError, match="language=xx: text=spoken expects a language whose numbers"):
        text_rule(OwnDataOptions(text="spoken", language="xx"))
