"""Files of any origin, as Spark reads them: nothing that does not fit is dropped or changed."""
