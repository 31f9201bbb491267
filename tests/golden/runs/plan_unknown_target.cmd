smplan --target p4d.24xlrge
