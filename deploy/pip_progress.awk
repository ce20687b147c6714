# pip's output as one line for each step that takes a while.
/^Collecting /            { if (++found % 25 == 0) { print "  " found " packages found"; fflush() } }
/^Building wheel/         { print "  " tolower(substr($0, 1, 1)) substr($0, 2); fflush() }
/^Installing collected/   { print "  installing " split($0, names, ",") " packages"; fflush() }
