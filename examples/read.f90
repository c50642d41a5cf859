! SPDX-License-Identifier: Apache-2.0
!
! The same as read.c, in Fortran, without the hint.
!   gfortran -o read read.f90 $(pkg-config --libs libmonarch)
program read
  use, intrinsic :: iso_c_binding
  implicit none
  interface
    function monarch_read(path, buf, n, offset) bind(c) result(got)
      import :: c_char, c_int8_t, c_size_t, c_int64_t, c_long
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int8_t), intent(out) :: buf(*)
      integer(c_size_t), value :: n
      integer(c_int64_t), value :: offset
      integer(c_long) :: got
    end function
  end interface
  integer(c_int8_t) :: buffer(65536)
  integer(c_int64_t) :: offset, total
  integer(c_long) :: got
  character(4096) :: path
  integer :: i

  do i = 1, command_argument_count()
    call get_command_argument(i, path)
    offset = 0
    total = 0
    do
      got = monarch_read(trim(path) // c_null_char, buffer, size(buffer, kind=c_size_t), offset)
      if (got < 0) error stop 'a file cannot be read'
      if (got == 0) exit
      total = total + sum(iand(int(buffer(1:got), c_int64_t), 255_c_int64_t))
      offset = offset + got
    end do
    print '(i0, 1x, i0)', offset, total
  end do
end program
