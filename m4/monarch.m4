# SPDX-License-Identifier: Apache-2.0

# MONARCH_REQUIRE_MODULE(VARIABLE, PKG-CONFIG-MODULE, DEBIAN-PACKAGE)
# Adds the module to MONARCH_CFLAGS and MONARCH_LIBS; an error that names the package if it is missing.
AC_DEFUN([MONARCH_REQUIRE_MODULE], [
  PKG_CHECK_MODULES([$1], [$2], [],
    [AC_MSG_ERROR([$2 was not found by $PKG_CONFIG; on Debian: apt-get install $3])])
  MONARCH_CFLAGS="$MONARCH_CFLAGS $$1_CFLAGS"
  MONARCH_LIBS="$MONARCH_LIBS $$1_LIBS"
])

# MONARCH_OPTIONAL_MODULE(VARIABLE, PKG-CONFIG-MODULE, DEBIAN-PACKAGE)
# Sets the Automake conditional HAVE_VARIABLE, and have_VARIABLE to "yes" or to "no" and the remedy.
AC_DEFUN([MONARCH_OPTIONAL_MODULE], [
  PKG_CHECK_MODULES([$1], [$2], [have_$1=yes], [have_$1="no (on Debian: apt-get install $3)"])
  AM_CONDITIONAL([HAVE_$1], [test "$have_$1" = yes])
])

# MONARCH_TRY_FORTIFY(LEVEL)
# Sets FORTIFY_CPPFLAGS, where it is empty, if the compiler optimizes and knows that level without a warning.
AC_DEFUN([MONARCH_TRY_FORTIFY], [
  AS_IF([test -z "$FORTIFY_CPPFLAGS$SAN_FLAGS"], [
    monarch_save_CPPFLAGS=$CPPFLAGS CPPFLAGS="$CPPFLAGS -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$1 -Werror"
    AC_COMPILE_IFELSE([AC_LANG_PROGRAM([[#include <string.h>
#ifndef __OPTIMIZE__
#error nothing is checked
#endif]], [])], [FORTIFY_CPPFLAGS="-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=$1"])
    CPPFLAGS=$monarch_save_CPPFLAGS])
])
