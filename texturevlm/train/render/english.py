"""A few hundred common English words, months and names, so that pages can be written with no list at all."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


COMMON_WORDS: tuple[str, ...] = _words(
    """
    the of and to a in that is was he for it with as his on be at by this had not are but from or have an they which
    one you were all her she there would their we him been has when who will no more if out so up said what its about
    than into them can only other time new some could these two may first then do any like my now over such our man me
    even most made after also did many off before must well back through years much where your way down should because
    long each just state those people too mr how little good world make very year still see own work men day get here
    old life both between being under three never know same last another while us might great go come since against
    right came take used himself few house use place during high without again home around small however found part
    general school number upon always system set program question fact number company business service office report
    committee meeting department research study center director president secretary manager section subject date total
    amount account invoice payment balance order item quantity price unit description address street city phone name
    title page table figure chart source note form request approval signature received required information project
    contract agreement policy plan budget cost expense income tax rate percent increase decrease sales market product
    brand advertising promotion consumer test sample analysis result data method laboratory chemical physical medical
    health hospital patient treatment disease cancer smoking tobacco cigarette filter nicotine tar smoke food sugar
    nutrition vitamin protein water oil energy industry factory production equipment material paper shipping delivery
    export import trade bank credit cash check fund grant university college professor education student science
    national international american united states federal government public law legal court attorney agency division
    board member chairman conference annual quarterly monthly weekly daily schedule agenda minutes memorandum letter
    copy file reference attached enclosed regarding please thank sincerely yours truly dear sir attention confidential
    special standard average maximum minimum estimated actual current previous following summary introduction purpose
    background objective conclusion recommendation discussion response review comment change effect level group type
    class region area north south east west new york washington london chicago california texas virginia carolina
    january february march april june july august september october november december monday tuesday wednesday
    thursday friday saturday sunday temperature pressure weight height length volume capacity speed quality control
    safety environment management personnel employee training position salary benefit insurance travel hotel airline
    train auto vehicle station telephone fax number extension website email contact customer client vendor supplier
    store retail wholesale distribution location building room floor design development technology computer software
    network process operation maintenance repair installation inspection certificate license permit registration
    document record history chapter volume edition publication journal article author editor press library museum
    """
)

MONTHS: tuple[str, ...] = _words(
    "January February March April May June July August September October November December"
)

PERSON_NAMES: tuple[str, ...] = _words(
    """
    Adams Allen Anderson Baker Bennett Brown Campbell Carter Clark Collins Cook Cooper Davis Dawson Edwards Evans Fisher
    Foster Garcia Gibson Gordon Graham Grant Green Hall Hamilton Harper Harris Henderson Hill Howard Hughes Jackson
    James Jenkins Johnson Jones Kelly Kennedy King Kumar Lawrence Lee Lewis Lopez Marshall Martin Martinez Mason Miller
    Mitchell Moore Morgan Morris Murphy Nelson Nguyen Owen Parker Patel Perry Peterson Phillips Powell Quinn Reed
    Reynolds Richardson Roberts Robinson Rogers Ross Russell Sanders Schmidt Scott Shaw Simpson Smith Stewart
    Sullivan Taylor Thomas Thompson Turner Walker Wallace Ward Watson Webster White Williams Wilson Wood Wright
    Young Zimmerman Ahmad
    Alice Barbara Carol Charles Daniel David Donald Dorothy Edward Elizabeth Frank George Helen Henry Jennifer John
    Joseph Karen Kenneth Linda Margaret Maria Mark Mary Michael Nancy Patricia Paul Peter Ralph Raymond Richard Robert
    Ruth Sandra Sarah Sharon Stephen Steven Susan Victor Walter William
    """
)
