# The boot sector that tries out KVM; `accelerator.rs` carries it assembled, as trial.bin:
#
#   as -o trial.o trial.S && ld -m elf_x86_64 -Ttext=0x7c00 --oformat binary -o trial.bin trial.o
#
# It does what boot loaders and kernels do first, and what nested virtualization fails at most often: it enters
# protected mode and returns to real mode several times, with a timer interrupt in one and a call of the firmware in
# the other, then turns on paging and long mode. From there it writes a line to the first serial port.

        .code16
        .globl _start
_start: cli
        ljmp $0, $1f
1:      xorw %ax, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movw $0x7c00, %sp
        movb %dl, drive
        # Four switches to protected mode and back, a timer interrupt and a call of the firmware in each.
        movw $4, %bp
again:  cli
        lgdt gdt_pointer
        lidt idt_pointer
        movl %cr0, %eax
        orb $1, %al
        movl %eax, %cr0
        ljmp $0x08, $protected
        .code32
protected:
        movw $0x10, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        # vector 8 (IRQ0 in the firmware's layout of the interrupt controller)
        movl $0x2000, %edi
        xorl %eax, %eax
        movl $0x100, %ecx
        cld
        rep stosl
        movl $0x00080000 + handler, 0x2040
        movl $0x00008e00, 0x2044
        movl $0, ticks
        sti
2:      hlt
        cmpl $0, ticks
        je 2b
        cli
        ljmp $0x18, $leave
handler:
        pushl %eax
        incl ticks
        movb $0x20, %al
        outb %al, $0x20
        popl %eax
        iret
        .code16
leave:  movw $0x20, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        movl %cr0, %eax
        andb $0xfe, %al
        movl %eax, %cr0
        ljmp $0, $real
real:   xorw %ax, %ax
        movw %ax, %ds
        movw %ax, %es
        movw %ax, %ss
        lidt real_idt
        sti
        # Reads a sector with the firmware, which runs code of its own in real mode.
        movw $0x0201, %ax
        movw $0x0001, %cx
        movb $0, %dh
        movb drive, %dl
        movw $0x8000, %bx
        int $0x13
        decw %bp
        jnz again
        cli
        # Three page tables at 0x1000, which map the first 2 MiB to themselves.
        movl $0x1000, %edi
        movl %edi, %cr3
        xorl %eax, %eax
        movw $0xc00, %cx
        cld
        rep stosl
        movw $0x2003, 0x1000
        movw $0x3003, 0x2000
        movw $0x0083, 0x3000
        movl %cr4, %eax
        orb $0x20, %al
        movl %eax, %cr4
        movl $0xc0000080, %ecx
        rdmsr
        orb $1, %ah
        wrmsr
        movl %cr0, %eax
        orl $0x80000001, %eax
        movl %eax, %cr0
        ljmp $0x28, $long
        .code64
long:   movl $text, %esi
        movw $0x3f8, %dx
3:      lodsb
        outb %al, %dx
        testb %al, %al
        jnz 3b
4:      hlt
        jmp 4b
        .balign 8
gdt:    .quad 0
        .quad 0x00cf9a000000ffff   # 0x08 code, 32-bit
        .quad 0x00cf92000000ffff   # 0x10 data, 32-bit
        .quad 0x00009a000000ffff   # 0x18 code, 16-bit
        .quad 0x000092000000ffff   # 0x20 data, 16-bit
        .quad 0x00209a0000000000   # 0x28 code, 64-bit
gdt_end:
gdt_pointer: .word gdt_end - gdt - 1
        .long gdt
idt_pointer: .word 0x3ff
        .long 0x2000
real_idt: .word 0x3ff
        .long 0
drive:  .byte 0
ticks:  .long 0
text:   .asciz "the guest runs\n"
        .org 510
        .byte 0x55, 0xaa
